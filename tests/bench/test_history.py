import json
import os
import subprocess
import threading

import pytest

import electra
from electra.bench import history
from electra.bench.history import (
    Comparison,
    append,
    change_cell,
    check_writable,
    code_facts,
    compare,
    comparison_table,
    history_file,
    line_of,
    read_history,
    run_facts,
)
from electra.errors import InputError

MACHINE = {"cpu": "a processor", "flags": ["avx2"], "cores": 2, "threads": 2}
FACTS = {
    "date": "2025-01-01T10:00:00+00:00",
    "version": "1.0",
    "commit": "aaaa1111" + 32 * "0",
    "dirty": False,
}
SETTINGS = {"size": "small", "repeats": 3}


def span(value, low=None, high=None, rounds=3):
    return {"value": value, "min": low or value, "max": high or value, "rounds": rounds}


def line(**changes):
    """A line of a history, in made-up figures."""
    return {
        "format": 1,
        "bench": "pretrain",
        **FACTS,
        "machine": MACHINE,
        "precision": {"ours": "fp32"},
        "ratios": {"ours against plain": span(2.0, 1.9, 2.1)},
        "settings": SETTINGS,
        **changes,
    }


@pytest.fixture
def kept(tmp_path):
    """Writes lines, each a day after the one before, and reads them as records."""
    path = tmp_path / "history.jsonl"

    def keep(*lines):
        for day, content in enumerate(lines, start=1):
            append(path, {**content, "date": f"2025-01-{day:02}T10:00:00+00:00"})
        return read_history(path)

    return keep


def compared(records, before=None, after=None, defaults=None):
    found, reasons = compare(records, before=before, after=after, defaults=defaults or {})
    return [(pair.before.number, pair.after.number) for pair in found], reasons


def test_a_contest_leaves_its_ratios_with_the_range_of_its_rounds(neighbours_result):
    found = line_of("pretrain", neighbours_result, FACTS, SETTINGS)
    assert found["ratios"] == {
        "ours against plain": {"value": 3.0, "min": pytest.approx(2 / 9), "max": 4.0, "rounds": 3},
        "ours against plain beside 1": {"value": 6.0, "min": 6.0, "max": 6.0, "rounds": 2},
        "speed left to ours beside 1": {"value": 0.5, "min": 0.4, "max": 0.6, "rounds": 2},
    }
    assert found["precision"] == {"ours": "bf16", "plain": "fp32"}
    assert found["machine"]["flags"] == ["avx2"]
    assert found["settings"] == SETTINGS
    assert {key: found[key] for key in FACTS} == FACTS


def test_growth_leaves_shares_that_were_measured_once(growth_result):
    found = line_of("growth", growth_result, FACTS, {})
    assert found["precision"] == {"ours": "bf16"}
    # 15 GFLOP in 0.2 to 0.4 s, of 100 GFLOP/s.
    share = found["ratios"]["seq_length 128: of peak"]
    assert share == pytest.approx({"value": 0.5, "min": 0.375, "max": 0.75, "rounds": 1})
    assert found["ratios"]["seq_length 128: needed of memory"]["value"] == pytest.approx(1 / 1.2)


def test_quality_leaves_its_scores_with_the_range_of_its_seeds(quality_result):
    found = line_of("quality", quality_result, FACTS, {})
    score = found["ratios"]["mlm, 3m: conll2000"]
    assert score == pytest.approx({"value": 0.805, "min": 0.8, "max": 0.81, "rounds": 3})
    assert found["precision"] == {"mlm": "bf16"}


def test_lines_are_added_and_read_again(tmp_path):
    path = tmp_path / "history.jsonl"
    assert [append(path, line()), append(path, line(bench="serve"))] == [1, 2]
    first = path.read_bytes()
    assert append(path, line(commit=None, dirty=None)) == 3
    assert path.read_bytes().startswith(first)
    records = read_history(path)
    assert [(record.number, record.bench) for record in records] == [
        (1, "pretrain"),
        (2, "serve"),
        (3, "pretrain"),
    ]
    assert records[0].ratios == line()["ratios"]
    assert [record.code for record in records[1:]] == ["aaaa1111", "version 1.0"]


def test_commands_that_add_lines_at_a_time_do_not_mix_them(tmp_path):
    path = tmp_path / "history.jsonl"
    # Longer than what a system writes at once.
    long = line(settings={"corpus": ["x" * 1000] * 200})
    threads = [threading.Thread(target=append, args=(path, long)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_history(path)) == 8


def test_a_line_that_was_cut_off_does_not_damage_the_next(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    append(path, line())
    with path.open("ab") as file:
        file.write(b'{"bench": "pre')
    assert append(path, line()) == 3
    assert [record.number for record in read_history(path)] == [1, 3]
    assert "line 2" in capsys.readouterr().err


def test_a_line_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    append(path, line())
    before = path.read_bytes()

    def full(file):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="space"):
        append(path, line())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b"\xff\xfe", "line 1"),
        (b"[]", "object"),
        (json.dumps({**line(), "format": 2}).encode(), "format is 2"),
        (json.dumps({**line(), "bench": 3}).encode(), "bench"),
        (json.dumps({key: value for key, value in line().items() if key != "ratios"}).encode(), "ratios"),
        (json.dumps(line(machine={"cpu": "x"})).encode(), "machine"),
        (json.dumps(line(machine={**MACHINE, "flags": [1]})).encode(), "flag"),
        (json.dumps(line(precision={"ours": 16})).encode(), "precision"),
        (json.dumps(line(ratios={"it": 2.0})).encode(), "'it'"),
        (json.dumps(line(ratios={"it": {**span(2.0), "max": float("nan")}})).encode(), "'it'"),
    ],
)
def test_a_damaged_line_is_told_and_left_out(damaged, message, tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    path.write_bytes(damaged + b"\n\n" + json.dumps(line()).encode() + b"\n")
    assert [record.number for record in read_history(path)] == [3]
    said = capsys.readouterr().err
    assert "line 1" in said
    assert message in said


def test_the_order_is_that_of_the_dates(tmp_path):
    path = tmp_path / "history.jsonl"
    for day in (2, 1, 3):
        append(path, line(date=f"2025-01-0{day}T00:00:00+00:00"))
    assert [record.number for record in read_history(path)] == [2, 1, 3]


def test_the_newest_two_of_the_same_work_on_the_same_processor_are_compared(kept):
    records = kept(
        line(),
        line(),
        line(machine={**MACHINE, "cpu": "another"}),
        line(settings={"size": "base", "repeats": 3}),
        line(bench="serve"),
        # How often it was done is not what was done.
        line(settings={"size": "small", "repeats": 5}),
    )
    assert compared(records) == ([(2, 6)], [])


def test_a_command_that_measured_several_benches_has_all_of_them_compared(tmp_path):
    path = tmp_path / "history.jsonl"
    for day, benches in ((1, ("pretrain", "prepare")), (2, ("pretrain", "prepare", "serve"))):
        for bench in benches:
            append(path, line(bench=bench, date=f"2025-01-0{day}T00:00:00+00:00"))
    pairs, reasons = compared(read_history(path))
    assert pairs == [(1, 3), (2, 4)]
    assert [reason.split()[0] for reason in reasons] == ["serve"]


def test_runs_are_named_by_line_or_commit(kept):
    commits = ["aaaa" + 36 * "1", "bbbb" + 36 * "2", "bbbb" + 36 * "2", "bcbc" + 36 * "3"]
    records = kept(*(line(commit=commit) for commit in commits))
    assert compared(records, before="1")[0] == [(1, 4)]
    assert compared(records, before="AAA", after="bb")[0] == [(1, 3)]
    # Also backwards, if that is what somebody wants to see.
    assert compared(records, before="4", after="2")[0] == [(4, 2)]
    with pytest.raises(InputError, match=r"before is b.*bbbb22222222.*bcbc33333333"):
        compared(records, before="b")
    with pytest.raises(InputError, match=r"after is 9\b.*4 \(bcbc3333\)"):
        compared(records, after="9")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no run"),
        ([line()], "no other run"),
        ([line(), line(bench="serve")], "no other run"),
        (
            [line(), line(machine={**MACHINE, "cpu": "another"})],
            r"different processors: a processor.*another",
        ),
        ([line(), line(machine={**MACHINE, "flags": ["avx2", "avx512f"]})], r"different processors.*avx512f"),
        ([line(), line(settings={"size": "base"})], "size is small and base"),
        ([line(), line(ratios={"something else": span(1.0)})], "no ratio in common"),
    ],
)
def test_where_there_is_nothing_to_compare_it_says_why(lines, message, kept, tmp_path):
    (tmp_path / "history.jsonl").touch()
    with pytest.raises(InputError, match=f"nothing to compare.*{message}"):
        compared(kept(*lines))


def test_of_several_that_differ_the_nearest_is_told(kept):
    other = {**MACHINE, "cpu": "another"}
    records = kept(line(machine=other, settings={"size": "base"}), line(machine=other), line())
    with pytest.raises(InputError, match=r"different processors") as caught:
        compared(records, after="3")
    assert "settings" not in str(caught.value)


def test_a_setting_that_is_newer_than_a_run_had_its_default(kept):
    records = kept(line(), line(settings={**SETTINGS, "neighbours": []}))
    assert compared(records, defaults={"pretrain": {"neighbours": []}})[0] == [(1, 2)]
    with pytest.raises(InputError, match="neighbours"):
        compared(records, defaults={"pretrain": {"neighbours": [1]}})


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (span(2.3, 2.2, 2.4), "better"),
        (span(1.7, 1.6, 1.8), "worse"),
        (span(2.2, 2.1, 2.3), "within the noise"),
        (span(1.5, rounds=1), "one round"),
        (None, ""),
    ],
)
def test_only_what_lies_outside_the_other_range_is_a_change(after, verdict, kept):
    ratios = {"extra": span(1.0), **({} if after is None else {"ours against plain": after})}
    before, now = kept(line(), line(ratios=ratios))
    pair = Comparison(before, now)
    changes = {change.name: change.verdict for change in pair.changes}
    assert changes == {"ours against plain": verdict, "extra": ""}
    assert pair.worse == (["ours against plain"] if verdict == "worse" else [])
    assert pair.as_json()["changes"][0]["verdict"] == verdict


def test_the_table_has_both_runs_and_what_became_of_each_ratio(kept):
    now = line(
        dirty=True,
        precision={"ours": "bf16", "plain": None},
        ratios={"ours against plain": span(2.5, 2.4, 2.6), "new": span(1.0)},
    )
    lines = comparison_table(Comparison(*kept(line(), now))).splitlines()
    assert "aaaa1111 of 2025-01-01 10:00 (line 1)" in lines[0]
    assert "aaaa1111+ of 2025-01-02 10:00 (line 2)" in lines[0]
    assert lines[1] == "a processor (avx2), 2 cores, 2 threads, ours in bf16"
    assert lines[2].split()[-1] == "bf16"
    ratio, new = (" ".join(line.split()) for line in lines[-2:])
    assert ratio == "ours against plain 2.000 (1.900 - 2.100) 2.500 (2.400 - 2.600) +25.0% better"
    assert new == "new – 1.000 (1.000 - 1.000) –"


def test_a_score_of_nothing_has_no_change_in_percent():
    assert change_cell(history.Change("it", span(0.0), span(0.5))) == "–"


def test_the_usual_file_is_taken_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert history_file("auto") is None
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / history.USUAL).touch()
    assert history_file("auto") == history.USUAL
    assert history_file("none") is None
    assert str(history_file("mine.jsonl")) == "mine.jsonl"


@pytest.mark.parametrize("name", [".", "nowhere/history.jsonl"])
def test_a_file_that_cannot_be_written_is_refused(name, tmp_path):
    check_writable(tmp_path / "history.jsonl")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="history is"):
        check_writable(tmp_path / name)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"history\.jsonl"):
        read_history(tmp_path / "history.jsonl")


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_code_of_a_checkout_has_a_commit(tmp_path, monkeypatch):
    package = tmp_path / "checkout" / "src"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(electra, "__file__", str(package / "__init__.py"))
    git(tmp_path / "checkout", "init")
    # What git does not know is no part of the checkout: a package that was installed below it.
    assert code_facts()["commit"] is None
    git(tmp_path / "checkout", "add", ".")
    git(tmp_path / "checkout", "commit", "-m", "it")
    facts = code_facts()
    assert len(facts["commit"]) == 40
    assert facts["dirty"] is False
    # Other files of the checkout, such as the history itself, do not change what is measured.
    (tmp_path / "checkout" / "notes").write_text("")
    assert code_facts()["dirty"] is False
    (package / "__init__.py").write_text("changed")
    assert code_facts() == {**facts, "dirty": True}


def test_without_git_there_is_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    facts = run_facts()
    assert facts["commit"] is facts["dirty"] is None
    assert facts["version"]
    assert facts["date"].endswith("+00:00")
