"""Every number that a command takes, with every kind of value that is none: exit 2, no traceback.

The options are read from the commands themselves, so that a new one is tried as well.
"""

from contextlib import suppress
from typing import get_args

import pytest
from fakes import sweep_spec

from cptune.cli import run
from cptune.cli.app import app
from cptune.spec import write_toml
from topology.rings_command import main as rings

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
BAD = ("nan", "-inf", "inf", "1e308", "1e999", "-1", "1.5", "9" * 30, "9" * 5000, "", "x", "0x1p3")
# the words of each command before its options; none of these starts anything
COMMANDS = {
    ("balance",): ["--no-measured"],
    ("topology", "rings"): ["t.txt"],
    ("topology", "probe"): ["t.txt"],
    ("plan",): ["s.toml"],
    ("explain",): ["s.toml"],
    ("sweep",): ["s.toml"],
    ("replay",): ["t.txt"],
}
NEEDED = {
    ("topology", "rings"): {"--tp": "1", "--cp": "2"},
    ("topology", "probe"): {"--cp": "2"},
}
LISTS = {("balance",): ["--cp", "--layers"]}
FRACTIONS_DO = {"--share", "--token-keys", "--payload-mib"}  # 1.5 is legal


def number_options(command):
    one = app
    for word in command:
        one = one[word]
    found = one.assemble_argument_collection()
    return {
        argument.name: argument
        for argument in found
        if {int, float} & {argument.hint, *get_args(argument.hint)}
        and argument.name.startswith("--")
    }


def cases():
    for command in COMMANDS:
        for option in [*number_options(command), *LISTS.get(command, [])]:
            for bad in BAD:
                if not (bad == "1.5" and option in FRACTIONS_DO):
                    yield command, option, bad


def spellings(bad):
    """How a message may show a value: as it was given, or as the number that it is."""
    yield bad[:20]
    with suppress(ValueError):
        yield str(float(bad))


def ended(words):
    """The exit code, or what would have been a traceback."""
    try:
        return run(words)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 each is what is looked for
        return exc


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(MATRIX)
    (tmp_path / "s.toml").write_text(
        write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n'))
    )
    return tmp_path


def test_every_command_with_numbers_is_tried():
    assert {len(number_options(command)) for command in COMMANDS} >= {1, 2, 6}
    assert set(number_options(("balance",))) >= {"--world", "--token-keys", "--seed", "--window"}


def test_no_bad_number_of_any_option_is_taken_or_ends_in_a_traceback(folder, capsys):
    wrong = []
    for command, option, bad in cases():
        needed = {k: v for k, v in NEEDED.get(command, {}).items() if k != option}
        others = [f"{name}={value}" for name, value in needed.items()]
        words = [*command, *COMMANDS[command], *others, f"{option}={bad}"]
        code = ended(words)
        said = capsys.readouterr()
        plain = option.lstrip("-").replace("-", "")
        named = plain in said.err.lower().replace("-", "").replace("_", "")
        shown = any(text in said.err for text in spellings(bad))
        if code != 2 or said.out or not (named and shown):
            wrong.append((words[: len(command)], option, bad[:20], code, said.err[:200]))
    assert wrong == []


@pytest.mark.parametrize("bad", [*BAD, "0"])
@pytest.mark.parametrize("option", ["--tp", "--cp"])
def test_the_rings_of_the_topology_alone_refuse_them_too(folder, option, bad, capsys):
    with pytest.raises(SystemExit) as left:
        rings(["--tp=1", "--cp=2", f"{option}={bad}", "t.txt"])

    assert left.value.code == 2
    assert capsys.readouterr().out == ""


NUMBERS = {
    "model": ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts"),
    "workload": ("seq_len", "global_batch_seqs"),
    "cluster": ("world_size", "gpus_per_node", "network_bytes_per_s", "memory_margin"),
    "budget": ("trials", "wall_s", "steps", "ci_share", "finalist_rounds"),
    "objective": ("exposed_comm_share", "throughput_slack"),
    "search": ("seed",),
}
NO_NUMBERS = ("nan", "inf", "-inf", "-1", "1e308", "9" * 30, "9" * 5000, '"8"', "true", "[]")


def test_no_bad_number_of_a_spec_is_taken_or_ends_in_a_traceback(folder, capsys):
    whole = write_toml(sweep_spec('[cluster]\nworld_size = 4\ngpu = "cpu"\n'))
    wrong = []
    for table, keys in NUMBERS.items():
        for key in keys:
            for bad in NO_NUMBERS:
                lines = [line for line in whole.splitlines() if not line.startswith(f"{key} = ")]
                at = lines.index(f"[{table}]") + 1
                (folder / "bad.toml").write_text(
                    "\n".join([*lines[:at], f"{key} = {bad}", *lines[at:]])
                )
                code = ended(["plan", "bad.toml"])
                err = capsys.readouterr().err
                if code != 2 or (key not in err and "TOML" not in err):
                    wrong.append((table, key, bad[:20], code, err[:200]))
    assert wrong == []
