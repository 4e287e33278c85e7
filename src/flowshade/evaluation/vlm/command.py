"""`flowshade eval vlm` and `flowshade eval consistency`: parse, call this package, print.

`add_commands` hooks both into a command group, so that the command line needs one line for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from flowshade.errors import FlowshadeError
from flowshade.progress import progress_bar

if TYPE_CHECKING:
    from flowshade.evaluation.vlm.client import Judge
    from flowshade.evaluation.vlm.run import Estimate

Footage = Annotated[Positional[Path], arg(metavar="FOOTAGE", help="Folder of videos, folders of pictures, or clips.")]
Methods = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(metavar="NAME=DIR", help="A method and the folder of its results, named after the clips; may be repeated."),
]
Output = Annotated[Path, arg(name="output", aliases=["-o"], metavar="DIR", help="The folder of the run.")]
Clips = Annotated[tuple[str, ...], arg(metavar="NAME ...", help="Only these clips of the footage.")]
Seed = Annotated[int, arg(metavar="N", help="Of orders and of bootstrap intervals.")]


def vlm(
    footage: Footage,
    output: Output,
    method: Methods = (),
    channels: Annotated[
        tuple[Literal["albedo", "normal", "depth", "roughness", "metallic"], ...], arg(help="What is judged.")
    ] = ("roughness", "metallic"),
    axes: Annotated[
        tuple[Literal["semantic", "appearance", "temporal"], ...], arg(help="In which respects.")
    ] = ("semantic", "appearance", "temporal"),
    clips: Clips = (),
    repeats: Annotated[int, arg(metavar="N", help="Times each question is asked, in other orders; best even.")] = 4,
    pictures: Annotated[int, arg(metavar="N", help="Moments that a question shows.")] = 4,
    stride: Annotated[int, arg(metavar="N", help="Frames between moments on the temporal axis.")] = 2,
    longest_side: Annotated[int, arg(metavar="PX", help="Of a grid, at most.")] = 1280,
    seed: Seed = 0,
    asks: Annotated[int, arg(metavar="N", help="Times a question is asked until its answer can be read.")] = 3,
    control: Annotated[bool, arg(help="Also show a damaged copy of the first method, to test the judge.")] = False,
    incomplete: Annotated[bool, arg(help="Leave out clips that some method lacks.")] = False,
    base_url: Annotated[
        str | None, arg(metavar="URL", help="An OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1.")
    ] = None,
    judge: Annotated[
        str | None, arg(metavar="NAME", help="The endpoint's model; without --base-url a local transformers model.")
    ] = None,
    key_env: Annotated[
        str, arg(metavar="NAME", help="Environment variable with the key; it is never written or printed.")
    ] = "FLOWSHADE_VLM_KEY",
    temperature: Annotated[
        float, arg(metavar="X", help="Of the endpoint's model; below 0 leaves it to the endpoint.")
    ] = 0.0,
    max_tokens: Annotated[int, arg(metavar="N", help="Of an answer; models that think need thousands.")] = 400,
    max_tokens_name: Annotated[
        Literal["max_tokens", "max_completion_tokens"], arg(help="What the endpoint calls that limit.")
    ] = "max_tokens",
    timeout: Annotated[float, arg(metavar="S", help="Seconds for one request as a whole.")] = 120.0,
    tries: Annotated[int, arg(metavar="N", help="Requests before a failure that may pass is final.")] = 6,
    per_minute: Annotated[float | None, arg(metavar="N", help="Requests a minute, at most.")] = None,
    parallel: Annotated[int, arg(metavar="N", help="Questions at a time.")] = 1,
    price_in: Annotated[float, arg(metavar="X", help="Price of a million tokens in.")] = 0.0,
    price_out: Annotated[float, arg(metavar="X", help="Price of a million tokens out.")] = 0.0,
    picture_tokens: Annotated[
        int | None, arg(metavar="N", help="Tokens of one grid, if known; else one for 28x28 pixels.")
    ] = None,
    human: Annotated[
        Path | None, arg(metavar="CSV", help="Ranks by people: clip,channel,axis,method,rank[,rater].")
    ] = None,
    device: Annotated[str, arg(metavar="NAME", help="Of a local model: auto, cpu, cuda or cuda:N.")] = "auto",
    keep_grids: Annotated[bool, arg(help="Keep all pictures shown, not one question of a kind.")] = False,
    dry_run: Annotated[bool, arg(help="Write example grids, say what it would cost, and stop.")] = False,
    yes: Annotated[bool, arg(help="Send without asking first.")] = False,
) -> None:  # fmt: skip
    """Have a vision-language model rank methods' buffers of real footage; see docs/vlm.md."""
    from flowshade.evaluation.vlm.agreement import read_human_ranks
    from flowshade.evaluation.vlm.clips import Contest
    from flowshade.evaluation.vlm.report import results, write_results
    from flowshade.evaluation.vlm.run import Prices, Run, Trial, make_plan

    if parallel < 1:
        raise FlowshadeError(f"--parallel is {parallel}; expected 1 or more.")
    trial = Trial(
        channels=channels, axes=axes, repeats=repeats, pictures=pictures, stride=stride, longest_side=longest_side,
        seed=seed, asks=asks, control=control, incomplete=incomplete,
    )  # fmt: skip
    prices = Prices(per_million_in=price_in, per_million_out=price_out, picture_tokens=picture_tokens)
    people = [] if human is None else read_human_ranks(human)
    if judge is None and not dry_run:
        raise FlowshadeError(
            "no judge was named; give --judge NAME with --base-url URL, or --judge with a local model's folder. "
            "Without one: flowshade eval consistency, or --dry-run."
        )
    described, make_judge = _judge(
        base_url, judge, key_env, device,
        temperature=None if temperature < 0 else temperature, max_tokens=max_tokens,
        max_tokens_name=max_tokens_name, timeout=timeout, tries=tries, per_minute=per_minute,
    )  # fmt: skip
    contest = Contest.find(footage, parse_methods(method), clips=clips)
    plan = make_plan(contest, trial, described)
    for note in plan.notes:
        print(f"note: {note}")
    run = Run(plan, output, keep_grids=keep_grids)
    with run.answers() as file:
        estimate = plan.estimate(list(file.answers), prices)
        print(f"{len(contest.footage)} clips, {', '.join(plan.methods)}: {estimate.text()}")
        if dry_run:
            for folder in run.preview():
                print(f"grid  {folder}")
            return
        if estimate.requests and not (yes or agreed(estimate)):
            print("nothing was sent.")
            return
        if estimate.requests:
            with progress_bar("asking", "questions") as progress:
                run.ask(make_judge(), file, parallel=parallel, progress=progress)
        found = results(plan, file.answers, people)
    write_results(output, found)
    _print_summary(found, output)


def consistency(
    footage: Footage,
    output: Output,
    method: Methods = (),
    clips: Clips = (),
    frames: Annotated[int, arg(metavar="N", help="Of each clip, at most.")] = 32,
    longest_side: Annotated[int, arg(metavar="PX", help="Larger clips are made smaller first.")] = 640,
    fov: Annotated[
        float | None, arg(metavar="DEGREES", help="Horizontal field of view, for clips without cameras.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Measure how methods' buffers agree with their footage and each other, without a reference or a judge."""
    from flowshade.evaluation.vlm.clips import Contest
    from flowshade.evaluation.vlm.consistency import Settings, measure, write_measures
    from flowshade.gbuffer.io.outputs import check_folder

    if frames < 2 or longest_side < 16:
        raise FlowshadeError(f"--frames {frames} --longest-side {longest_side}; expected 2 and 16 or more.")
    check_folder(output)
    contest = Contest.find(footage, parse_methods(method), clips=clips)
    with progress_bar("measuring", "clips") as progress:
        found = measure(contest, Settings(frames=frames, longest_side=longest_side, fov=fov), progress)
    print(write_measures(output, found, seed))
    print(f"wrote {output / 'consistency.json'} and consistency.md")


def add_commands(group: Any) -> None:
    """Adds `vlm` and `consistency` to a tyro SubcommandApp."""
    group.command(vlm, name="vlm")
    group.command(consistency, name="consistency")


def parse_methods(texts: tuple[str, ...]) -> dict[str, Path]:
    """NAME=DIR texts by name. Raises: FlowshadeError: none, no name, or one name twice."""
    methods: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not (equals and name.strip() and folder):
            raise FlowshadeError(f"--method got {text[:80]!r}; expected NAME=DIR, such as ours=results/ours.")
        if name.strip() in methods:
            raise FlowshadeError(f"--method names {name.strip()!r} twice; give each method its own name.")
        methods[name.strip()] = Path(folder)
    if not methods:
        raise FlowshadeError("no method was given; expected --method NAME=DIR, once for each method.")
    return methods


def agreed(estimate: Estimate) -> bool:
    """Asks whether to send. Raises: FlowshadeError: nobody is there to answer."""
    if not sys.stdin.isatty():
        raise FlowshadeError(f"this would send {estimate.text()}; expected --yes to do so. Give it.")
    return input("send them? [y/N] ").strip().lower() in ("y", "yes")


def _judge(
    base_url: str | None, name: str | None, variable: str, device: str, **options: Any
) -> tuple[dict[str, Any], Callable[[], Judge]]:
    """What is written down about the judge, and how to get it."""
    if name is None:
        return {"model": None}, _no_judge
    if base_url is None:
        from flowshade.device import choose_device
        from flowshade.evaluation.vlm.local import LocalJudge

        limit = options["max_tokens"]
        chosen = str(choose_device(device))
        described = {"transport": "transformers", "model": name, "max_tokens": limit}
        return described, lambda: LocalJudge.load(name, device=chosen, max_tokens=limit)
    from flowshade.evaluation.vlm.client import Endpoint, http_judge

    endpoint = Endpoint(base_url=base_url, model=name, **options)
    judge = http_judge(endpoint, variable)
    described = {
        "transport": "chat completions",
        "base_url": base_url,
        "model": name,
        "temperature": endpoint.temperature,
        "max_tokens": endpoint.max_tokens,
    }
    return described, lambda: judge


def _no_judge() -> Judge:
    raise AssertionError("a dry run asks nobody")


def _print_summary(found: dict[str, Any], output: Path) -> None:
    from flowshade.evaluation.vlm.report import markdown

    print(markdown(found))
    print(f"wrote {output / 'results.json'} and results.md")
