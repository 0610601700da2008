"""Writes a folder of results and is killed on the way: before the k-th thing it does to the disk.

``python killed_writer.py FOLDER VERSION K [inside]`` says ``ready`` and begins; K = 0 lets it
finish, and prints how many things there were to be killed before. ``inside`` stands for a system
that exchanges no names.
"""

import os
import signal
import sys
from pathlib import Path

from seepage.support import files

WATCHED = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.listdir", "ctypes.dlsym"}
NAMES = {1: ("a.txt", "deep/b.txt", "only-1.txt"), 2: ("a.txt", "deep/b.txt", "new/only-2.txt")}


def write(out: Path, version: int) -> None:
    """Write the files of one of two versions."""
    with files.whole_folder(out, "report") as folder:
        for name in NAMES[version]:
            files.write_private(folder / name, lambda file: file.write(b"%d" % version * 1000))


def main() -> None:
    """Write, and be killed."""
    out, version, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if "inside" in sys.argv[4:]:
        files._exchange = lambda one, other: False
    done = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal done
        if event in WATCHED:
            done += 1
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)

    print("ready", flush=True)
    sys.addaudithook(watch)
    write(out, version)
    print(done)


if __name__ == "__main__":
    main()
