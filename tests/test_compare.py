"""The command that compares runs, on two of CartPole."""

import pytest

from ml_pipeline import compare, train_ppo

SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--hidden-sizes", "8", "--n-epochs", "1"]
SMALL += ["--env-id", "CartPole-v1", "--iterations", "3", "--vec-env", "serial", "--eval-episodes", "1"]


def test_two_seeds_are_a_table_and_a_picture(tmp_path, capsys):
    folders = [tmp_path / f"small-seed{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(folders, start=1):
        assert train_ppo.main([*SMALL, "--seed", str(seed), "--checkpoint-dir", str(folder)]) == 0
        assert (folder / "report.html").is_file()
        assert (folder / "learning_curve.png").is_file()
    capsys.readouterr()
    picture = tmp_path / "curves.png"
    assert compare.main([*map(str, folders), "--output", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[2:4]] == [["small-seed1", "1", "192"], ["small-seed2", "2", "192"]]
    assert lines[5].startswith("small (2 runs): return of the last 5 % ")
    assert lines[-1] == f"Written to {picture}"
    assert picture.stat().st_size > 10_000


def test_no_run_is_one_sentence(capsys):
    with pytest.raises(SystemExit, match="2"):
        compare.main([])
    assert (
        capsys.readouterr().err
        == "compare: RUN is missing; name the folders of runs to compare, such as checkpoints/RUN.\n"
    )
