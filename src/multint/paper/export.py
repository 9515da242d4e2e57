"""How is a trained model handed to somebody? One folder: weights, what the model is built from, and a card."""

import shutil
from pathlib import Path

from multint.paper import session
from multint.paper.record import Record
from multint.paper.runs import RunError, read_json, write_json
from multint.paper.session import ABOUT, WEIGHTS
from multint.publish import publish, replacing, temporary

__all__ = ["export"]


def export(run: Path, out: Path) -> Path:
    """Write the folder ``out`` from a finished run. It gets its name when it is complete; a folder that exists stays as it is."""
    found = session.read(run)
    if out.exists():
        raise RunError(f"{out} exists already; name a folder that does not, or remove it")
    work = temporary(out)
    try:
        work.mkdir(parents=True)
        write_json(work / ABOUT, {key: value for key, value in read_json(run / ABOUT).items() if key != "given"})  # a path here
        for name, body in ((WEIGHTS, (run / WEIGHTS).read_bytes()), ("README.md", card(found, out.name).encode())):
            with replacing(work / name) as file:
                file.write(body)
        publish(work, out)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror}; name another folder") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def card(found: Record, name: str) -> str:
    """What the model is, on what it was trained, what it reaches, how it is loaded."""
    stands = f", in the place of {found.data.stands_for}" if found.data.stands_for else ""
    results = "\n".join(
        f"| {one.metric.unit} | {one.value:.4f} | {one.dataset} | {one.split} | {one.protocol or '—'} |" for one in found.results
    )
    edited = " with uncommitted changes" if found.dirty else ""
    return f"""# {name}

A model of the recipe `{found.recipe}` (seed {found.seed}), trained with [multint](https://pypi.org/project/multint) at commit
{found.commit}{edited}: {found.parameters:,} parameters, {found.updates:,} updates.

Data: {found.data.name}{stands}, sha256 {found.data.sha256}. The weights may be used as the licence of that data allows.

| metric | value | data | split | protocol |
|---|--:|---|---|---|
{results}

```python
from multint.paper.session import load

model = load({name!r})  # a torch.nn.Module in evaluation mode
```

`{WEIGHTS}` holds the weights, `{ABOUT}` what the model is built from.
"""
