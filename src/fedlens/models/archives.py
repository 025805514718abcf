"""What is inside the zip files that torch writes, read without torch: there, opening such a file may run what it holds.

What was checked must be what is run, so torch is never handed a file that it might read differently: see `archive`.
"""

import io
import zipfile

Members = dict[str, bytes]

_UNPACKED = 2**26  # bytes of packed members, which are the texts of programs; torch stores weights as they are


def members(content: bytes) -> Members:
    """By name, without the folder that all of them lie in; none where this is no such file."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            infos = archive.infolist()
            names = [info.filename.partition("/")[::2] for info in infos]
            if len(set(names)) < len(names) or len({folder for folder, _ in names}) > 1:
                return {}
            packed = sum(info.file_size for info in infos if info.compress_type != zipfile.ZIP_STORED)
            if packed > _UNPACKED or sum(info.file_size for info in infos) - packed > len(content):
                return {}
            return {name: archive.read(info) for (_, name), info in zip(names, infos, strict=True)}
    except Exception:  # a hostile file makes zipfile raise anything
        return {}


def archive(held: Members) -> bytes:
    """These members and no others, in a file of our own."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as file:
        for name, content in held.items():
            file.writestr(f"model/{name}", content)
    return made.getvalue()
