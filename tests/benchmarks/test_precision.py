"""A run of the script on the embedded model: fewer bits are further from float64."""

import re

from whence.demo import PHOTO


def test_fewer_bits_are_further_from_float64(load_script, monkeypatch, capsys):
    words = ["precision.py", str(PHOTO), "--model", "pets", "--methods", "gae"]
    monkeypatch.setattr("sys.argv", words)
    load_script("precision").main()
    printed = capsys.readouterr().out
    cells = re.findall(r"\| ([\d.e-]+) \(([\d.]+)\) \|", printed)
    assert len(cells) == 3
    (float32, _), (products, _), (whole, lowest) = [(float(a), float(b)) for a, b in cells]
    assert 0 < float32 < 1e-4 < products < whole < 0.2
    assert 0.9 < lowest < 1
