"""A run's folder: its lock, its checkpoints and what is refused, a full disk."""

import os
import signal
from pathlib import Path

import pytest
import torch

from multint.paper import runs
from multint.paper.runs import Progress, Run, RunError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def test_a_full_disk_is_named_and_the_last_good_checkpoint_stays(text, tmp_path):
    run = Run(tmp_path / "runs", "charlm/x", {"a": 1})
    with run:
        run.save_last({"w": torch.ones(10)}, Progress(update=1))
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        try:
            with pytest.raises(RunError, match="cannot write .*: File too large; the last good checkpoint is 000000001"):
                run.save_last({"w": torch.ones(100_000)}, Progress(update=2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [p.name for p in run.checkpoints.iterdir()] == ["000000001.safetensors"], "nothing half-written"
        tensors, progress = run.load_last()
        assert progress.update == 1 and torch.equal(tensors["w"], torch.ones(10))


def test_two_processes_never_write_one_folder(tmp_path):
    with (
        Run(tmp_path, "r", {"a": 1}),
        pytest.raises(RunError, match=f"is being written by another process \\(pid {os.getpid()}"),
        Run(tmp_path, "r", {"a": 1}),
    ):
        pass


def test_a_folder_started_with_other_settings_is_refused(tmp_path):
    with Run(tmp_path, "r", {"lr": 1.0}):
        pass
    with pytest.raises(RunError, match="was started with lr=1.0, now it is 2.0"), Run(tmp_path, "r", {"lr": 2.0}):
        pass


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the run folder .*: Not a directory; choose another with --runs"):
        Run(tmp_path / "file", "r", {}).__enter__()


def kept_run(tmp_path):
    """A run with checkpoints of updates 1 and 2."""
    run = Run(tmp_path, "made-up", {"hidden": 3})
    with run:
        for update in (1, 2):
            run.save_last({"model.w": torch.full((2,), float(update))}, Progress(update=update, lr=0.008))
    return run


@pytest.mark.parametrize("old, new", [(b"0.008", b"0.009"), (b'"lr', b'"rl'), (b"made-up", b"made-ip")])
def test_a_checkpoint_whose_account_was_altered_is_refused_and_the_one_before_is_used(tmp_path, old, new, capsys):
    run = kept_run(tmp_path)
    newest = run.checkpoints / "000000002.safetensors"
    assert old in newest.read_bytes()
    newest.write_bytes(newest.read_bytes().replace(old, new))
    tensors, progress = run.load_last()
    assert progress.update == 1 and tensors["model.w"].tolist() == [1.0, 1.0]
    assert "refused" in capsys.readouterr().err
    with run:
        run.save_last(tensors, Progress(update=2))  # a refused one does not take the place of a good one
    assert run.load_last()[1].update == 2


def test_a_checkpoint_without_a_sum_of_its_account_is_still_read(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "checksum", lambda tensors, said=None, real=runs.checksum: real(tensors))
    run = kept_run(tmp_path)
    monkeypatch.undo()
    assert run.load_last()[1].update == 2


def test_the_best_weights_are_read_from_the_checkpoint_of_their_update(tmp_path):
    run = kept_run(tmp_path)
    assert run.load_best(2)[0]["model.w"].tolist() == [2.0, 2.0]
    (run.checkpoints / "best.safetensors").write_bytes(b"torn")
    assert run.load_best(1)[0]["model.w"].tolist() == [1.0, 1.0]
    with pytest.raises(RunError, match="its weights are nowhere else; delete .*made-up and train again"):
        run.load_best(3)


def test_a_log_on_a_full_disk_is_an_error_of_one_line(tmp_path):
    run = kept_run(tmp_path)
    run.log_file = run.curve = Path("/dev/full")
    for write in (lambda: run.log("a line"), lambda: run.add_row({"update": 1})):
        with pytest.raises(RunError, match="cannot write /dev/full: No space left on device; make room and run the same"):
            write()


def test_tensors_of_a_checkpoint_are_aligned_in_memory(tmp_path):
    """Kernels round by alignment, so a continued run would differ in the last bit."""
    run = Run(tmp_path, "made-up", {})
    with run:
        run.save_last({f"w{k}": torch.ones(k) for k in range(1, 9)}, Progress(update=1))
    tensors, _ = run.load_last()
    assert all(tensor.data_ptr() % 64 == torch.empty(tensor.shape).data_ptr() % 64 == 0 for tensor in tensors.values())


def test_tied_weights_are_written_apart(tmp_path):
    run, weight = Run(tmp_path, "made-up", {}), torch.randn(2, 3)
    with run:
        run.save_last({"a": weight, "b": weight, "first": weight[0]}, Progress(update=1))
    tensors, _ = run.load_last()
    assert torch.equal(tensors["a"], weight) and torch.equal(tensors["b"], weight) and torch.equal(tensors["first"], weight[0])
