"""Each script in examples/ runs as its first line says, and prints what it promises."""

from __future__ import annotations

import ast
import os
import re
import runpy
import socket
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


LONGER = {  # than 30 lines
    "audio.py": 60,
    "images.py": 40,
    "lightning_module.py": 64,
    "molecules.py": 96,
    "own_loop.py": 40,
    "proteins.py": 76,
    "vision_language.py": 86,
}
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def on_ranks(*words, cwd=ROOT):
    """Run in processes of their own, and return the lines of stdout."""
    command = [sys.executable, "-W", "ignore", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for _ in range(3):  # gloo's threads now and then abort a process of PyTorch 2.13 that is over
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
        if not done.returncode or "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs a script in this process, in an empty folder: what it imports is here already."""

    def run(name):
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def forked(warm_python):
    """A function that runs a script on two ranks, in the environment that torchrun makes; the first one's stdout."""

    def forked(name):
        warm_python.load("torch.distributed", "transformers.models.bert.modeling_bert", "nopad.training", "lightning")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        where = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        script = ROOT / "examples" / f"{name}.py"
        ranks = [warm_python(script, **where, RANK=rank, LOCAL_RANK=rank, GROUP_RANK=0) for rank in range(2)]
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda rank: rank.communicate(240), ranks))
        assert [rank.wait() for rank in ranks] == [0, 0], said[0][1][-2000:]
        return said[0][0].splitlines()

    return forked


def metrics(lines):
    """The dicts that a script prints."""
    return [ast.literal_eval(line) for line in lines if line.startswith("{")]


def test_the_examples_are_short_and_all_here():
    names = [
        "audio",
        "balance",
        "classify_pairs",
        "images",
        "in_memory",
        "lightning_module",
        "molecules",
        "own_loop",
        "peft_lora",
        "proteins",
        "sft_chats",
        "stream",
        "training",
        "vision_language",
    ]
    assert [path.name for path in EXAMPLES] == [f"{name}.py" for name in names]
    for path in EXAMPLES:
        lines = path.read_text().splitlines()
        assert len(lines) <= LONGER.get(path.name, 30)
        assert f" examples/{path.name}`: " in lines[0]


def test_balance(run):
    found = {line.split()[0]: [float(one) for one in re.findall(r"([\d.]+)%", line)] for line in run("balance")}
    assert list(found) == ["none", "quantile_node", "karmarkar_karp", "sorted_windows"]
    assert all(floor <= waste + 0.01 for waste, floor in found.values())
    assert found["none"][0] > 20
    assert found["none"][0] > found["quantile_node"][0] > found["sorted_windows"][0]
    assert found["karmarkar_karp"][0] < 1


@pytest.mark.slow
def test_stream(run):
    pytest.importorskip("torch")
    lines = run("stream")
    assert "a stream in packs of at most 64 tokens" in lines[0]
    assert "12 steps seen" in lines[0]
    assert lines[1] == "5 and 7 batches are equal to 12 of one run: True"


@pytest.mark.slow
def test_training_on_two_ranks():
    pytest.importorskip("transformers")
    lines = on_ranks(*RANKS, "2", "examples/training.py")
    found = [re.fullmatch(r"epoch (\d): loss ([\d.]+), (\d+) sequences in (\d+) steps", line) for line in lines]
    assert [int(one[1]) for one in found] == [0, 1, 2]
    assert [int(one[3]) for one in found] == [201, 402, 603]
    steps = [int(one[4]) for one in found]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    assert float(found[-1][2]) < float(found[0][2]) / 4


@pytest.mark.slow
def test_sft_on_chats_in_fifteen_lines(run):
    pytest.importorskip("trl")
    source = (ROOT / "examples" / "sft_chats.py").read_text()
    assert sum(bool(line) for line in source.splitlines()[1:]) <= 15
    lines = run("sft_chats")
    assert "rate     0.01 stays as it is" in "\n".join(lines)
    [*_, found] = metrics(lines)
    assert found["eval_perplexity"] < 200  # of 30,522 tokens; without training about as many


@pytest.mark.slow
def test_chats_in_memory_in_the_trainer_of_trl(run):
    pytest.importorskip("trl")
    lines = run("in_memory")
    assert re.match(
        r"PackedDataset\(\d+ packs of at most 64 tokens; 120 sequences, .*; per token: input_ids, ", lines[0]
    )
    assert "in a temporary folder" in lines[0]
    [*_, found] = metrics(lines)
    assert 0 < float(found["train_loss"]) < 10.5  # a model that knows nothing has ln 30,522 = 10.3


@pytest.mark.slow
def test_pairs_are_classified(run):
    pytest.importorskip("accelerate")
    *_, found, predicted = metrics(run("classify_pairs"))
    assert found["eval_accuracy"] > 0.9
    assert predicted["label"] == "yes"


@pytest.mark.slow
def test_lora_is_trained_and_saved(run, tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    lines = run("peft_lora")
    *_, found, predicted = metrics(lines)
    assert found["eval_accuracy"] > 0.9
    assert predicted["label"] == "colour"
    trained, every = re.search(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)", "\n".join(lines)).groups()
    assert int(trained.replace(",", "")) < int(every.replace(",", "")) / 100
    [saved] = (tmp_path / "runs" / "lora").glob("*.safetensors")
    assert saved.stat().st_size < 2e6


@pytest.mark.slow
def test_own_loop_and_lightning_learn_the_same_on_one_rank_and_two(run, forked, monkeypatch):
    pytest.importorskip("transformers")
    pytest.importorskip("lightning", reason="Lightning is not installed")

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    losses = []
    for last in (run("own_loop")[-1], forked("own_loop")[-1], forked("lightning_module")[-1]):
        loss, sequences = re.search(r"last loss ([\d.]+), (\d+) sequences$", last).groups()
        assert sequences == "1200"
        losses.append(float(loss))
    assert losses == pytest.approx([losses[0]] * 3, abs=2e-6)
    assert losses[0] < 0.2


@pytest.fixture
def played(capsys):
    """Run a script in this process, which spares importing torch again; return what it printed, and its names."""

    def play(name):
        torch = pytest.importorskip("torch")
        pytest.importorskip("transformers")
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            found = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
        finally:
            torch.set_rng_state(state)
            torch.set_num_threads(threads)
        return capsys.readouterr().out, found

    return play


def check_padding(said, name):
    """Each pair of shares says padding before and after; they, and the packing factors, are those of the page."""
    shares = [float(one) for one in re.findall(r"([\d.]+)%", said)]
    half = len(shares) // 2
    both = "of nodes" in said or "of images" in said
    before, after = (shares[:half], shares[half:]) if both else (shares[::2], shares[1::2])
    assert min(before) > 40
    assert max(after) < 7
    factors = re.findall(r"packing factor ([\d.]+)", said)
    assert all(float(one) > 2 for one in factors)
    [row] = [line for line in (ROOT / "docs" / "beyond-text.md").read_text().splitlines() if f"/{name}.py` |" in line]
    assert sorted(re.findall(r"[\d.]+\d", row.split("|", 3)[3])) == sorted([*map(str, shares), *factors])
    assert "isolated" in said
    assert "✗" not in said


@pytest.mark.filterwarnings("ignore")
def test_images(played):
    from transformers import ViTForImageClassification

    said, names = played("images")
    check_padding(said, "images")
    stock = ViTForImageClassification(names["config"]).eval()
    stock.load_state_dict(names["model"].state_dict())
    some = names["images"][8:14]
    assert len({tuple(image.shape) for image in some}) > 3
    for image, found in zip(some, names["packed"](names["model"], some), strict=True):
        wanted = stock(image[None], interpolate_pos_encoding=True).logits[0]
        assert found.detach().numpy() == pytest.approx(wanted.detach().numpy(), abs=1e-6)
        assert abs(wanted).max() > 1e-3


@pytest.mark.filterwarnings("ignore")
def test_audio(played):
    from transformers import ModernBertModel

    said, names = played("audio")
    check_padding(said, "audio")
    model = names["model"]
    stock = ModernBertModel(model.encoder.config).eval()
    stock.load_state_dict(model.encoder.state_dict())
    some = names["clips"][8:14]
    for clip, found in zip(some, model(some), strict=True):
        states = stock(inputs_embeds=model.project(clip)[None]).last_hidden_state[0]
        wanted = model.classify(states.mean(0))
        assert found.detach().numpy() == pytest.approx(wanted.detach().numpy(), abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_molecules(played):
    import torch

    said, names = played("molecules")
    check_padding(said, "molecules")
    model, some = names["model"], names["graphs"][8:20]
    for graph, found in zip(some, names["packed"](model, some), strict=True):
        states = model.atom(graph["atoms"])
        adjacent = torch.zeros(len(states), len(states), len(graph["bonds"]))  # a dense way to pass messages
        adjacent[graph["ends"][1], graph["ends"][0], range(len(graph["bonds"]))] = 1
        for layer in model.rounds:
            sent = torch.relu(states[None, :, None] + model.bond(graph["bonds"])[None, None])
            states = states + torch.relu(layer(torch.cat([states, (adjacent[..., None] * sent).sum((1, 2))], 1)))
        assert float(found) == pytest.approx(float(model.read(states.sum(0))), rel=1e-4, abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_proteins(played):
    said, names = played("proteins")
    check_padding(said, "proteins")
    assert said.count("isolated") == 2
    assert list(names["fasta"]([">a b", "MKV", "lq", "", ">c", "M"])) == [("a b", "MKVLQ"), ("c", "M")]
    numbers = {"<cls>": 0, "<unk>": 1, "ATCGAT": 2, "A": 3, "T": 4, "C": 5, "N": 6}
    assert names["ids"]("ATCGATATCNAATA", "DNA", numbers) == [0, 2, 3, 4, 5, 6, 3, 3, 4, 3]
    stock = names["network"](names["KINDS"]["DNA"])
    stock.load_state_dict(names["model"].state_dict())
    import torch

    for text, found in list(zip(names["texts"], names["vectors"], strict=True))[:8]:
        with torch.no_grad():
            wanted = stock(input_ids=torch.tensor([text])).last_hidden_state[0].mean(0)
        assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_vision_language(played):
    import torch

    said, names = played("vision_language")
    check_padding(said, "vision_language")
    slots, apart = re.search(r"padded: ([\d.]+) times as many slots, logits equal within (\S+)", said).groups()
    assert float(slots) > 1.2
    assert float(apart) < 1e-5
    some = names["samples"][3:9]
    assert {names["size"](one)[1] for one in some} == {0, 1, 2, 4}
    with torch.no_grad():
        for one, found in zip(some, names["packed"](names["model"], some), strict=True):
            wanted = names["stock"](**one).logits[0]
            assert found.numpy() == pytest.approx(wanted.numpy(), abs=1e-5)
            assert abs(wanted).max() > 1e-3
