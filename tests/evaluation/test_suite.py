"""What a suite of worlds may ask for."""

from __future__ import annotations

import pytest

from flowshade.errors import FlowshadeError
from flowshade.evaluation.worlds import WorldSuite


@pytest.mark.parametrize("empty", [{"worlds": 0}, {"frames": 0}, {"looks": ()}, {"window": -1}])
def test_a_suite_of_nothing_is_refused(empty: dict) -> None:
    with pytest.raises(FlowshadeError, match="expected at least 1"):
        WorldSuite(**empty)
