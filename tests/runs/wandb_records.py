"""Prints what an offline run of W&B holds, one JSON object per line; a process of its own, since importing wandb makes
folders in TMPDIR that stay until the process ends.

The file is in LevelDB's log format (leveldb/doc/log_format.md) after a header of 7 bytes.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

BLOCK, HEADER = 32_768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def bodies(content: bytes) -> Iterator[bytes]:
    assert content.startswith(b":W&B")
    at, body = HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # a block ends in zeros where no header fits
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        body += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield body
            body = b""


def main(paths: list[str]) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    for path in paths:
        for body in bodies(Path(path).read_bytes()):
            record = Record()
            record.ParseFromString(body)
            for kind, items in (
                ("history", record.history.item),
                ("config", record.run.config.update),
                ("summary", record.summary.update),
            ):
                values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                if values:
                    print(json.dumps([kind, values]))


if __name__ == "__main__":
    main(sys.argv[1:])
