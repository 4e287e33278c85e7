# MuJoCo's classes live in C extensions without stubs: any name exists, of any type.
from typing import Any

def __getattr__(name: str) -> Any: ...
