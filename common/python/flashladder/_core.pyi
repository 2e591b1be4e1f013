"""The compiled part: only flashladder itself calls it."""

from typing import Any

from flashladder import _How

version: str

class KernelError(RuntimeError):
    kind: str
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    file: str
    line: int
    buffer: str

def stages() -> list[dict[str, Any]]: ...
def unavailable(stage: int, backend: str) -> str: ...
def as_bfloat16(bits: Any) -> Any: ...
def left_out(p: float, seed: int, into: Any) -> None: ...
def common_stream(arrays: dict[str, Any]) -> int | None: ...
def forward(
    stage: int, backend: str, arrays: dict[str, Any], how: _How, variant: dict[str, Any], stream: int, by_table: bool
) -> None: ...
def backward(
    stage: int, backend: str, arrays: dict[str, Any], how: _How, variant: dict[str, Any], stream: int, by_table: bool
) -> None: ...
def calls(type: type[Any]) -> Any: ...
def ledger(
    stage: int, q: Any, k: Any, v: Any, *, how: _How, variant: dict[str, Any], banks: bool, check: bool
) -> dict[str, Any]: ...
def random_ledger(
    stage: int, batch: int, heads: int, kv_heads: int, rows: int, keys: int, d: int, *,
    how: _How, variant: dict[str, Any], banks: bool, check: bool, backward: bool,
) -> dict[str, Any]: ...
