"""`N`, native sparse attention: what its branches are, how its sizes scale, how it decodes and what it costs."""

import pytest
import torch
from support.margins import below
from torch import Tensor

from kernels.autograd import flop_counter
from zoo import Context
from zoo.interfaces import Dims
from zoo.mixers.nsa import NSA, NSAConfig, sizes

WIDTH, HEADS = 32, 4
SMALL = {"block_size": 4, "stride": 2, "select_size": 4, "n_select": 4, "window": 5}


def mixer(dtype=torch.float64, seed: int = 0, **options) -> NSA:
    """A mixer whose weights are all far from 0."""
    made = NSA(NSAConfig(**{**SMALL, "n_kv_heads": 2, **options}), Dims(WIDTH, HEADS, 64, 0, 1))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made.to(dtype).eval()


def inputs(batch: int, time: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, WIDTH, generator=generator, dtype=torch.float64)


def run(made, x: Tensor) -> Tensor:
    return made(x, Context.of(x[..., 0]))[0]


def only(branch: int, made: NSA) -> NSA:
    """The mixer with the gates of one branch at 1 and the others at 0."""
    with torch.no_grad():
        made.gate_proj.weight.zero_()
        made.gate_proj.bias.view(HEADS, 3).fill_(-1e4)[:, branch] = 1e4
    return made


@torch.no_grad()
def test_compression_is_attention_over_summaries_without_positions():
    made, x = only(0, mixer()), inputs(1, 9)
    y = run(made, x)
    q = made.q_proj(x)[0].view(9, HEADS, -1)
    kv = made.kv_heads * made.width
    raw = [p(x)[0, :, :kv].view(9, made.kv_heads, -1) for p in (made.k_proj, made.v_proj)]
    for t in range(9):
        heads = []
        for h in range(HEADS):
            blocks = [[z[i : i + 4, h // 2] for i in range(0, t - 2, 2)] for z in raw]
            summaries = [
                [
                    phi.down.weight @ torch.nn.functional.silu(phi.up.weight @ (b + phi.positions).flatten())
                    for b in z
                ]
                for phi, z in zip((made.compress_k, made.compress_v), blocks, strict=True)
            ]
            if not summaries[0]:
                heads.append(torch.zeros(made.width).double())
                continue
            k, v = (torch.stack(z) for z in summaries)
            heads.append((k @ q[t, h] * made.width**-0.5).softmax(0) @ v)
        torch.testing.assert_close(y[0, t], made.o_proj.weight @ torch.cat(heads))


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [0, 50])
@torch.no_grad()
def test_step_repeated_is_forward_while_blocks_are_selected(capacity):
    made, x = mixer(), inputs(2, 50)
    y, state = run(made, x), made.init_state(2, capacity=capacity, dtype=torch.float64)
    for t in range(50):
        step, state = made.extend(x[:, t : t + 1], state)
        below((step[:, 0] - y[:, t]).abs().max(), 1e-9, f"token {t}")
        assert state.compressed.appended == max(0, (t + 1 - 4) // 2 + 1)


@torch.no_grad()
def test_decoding_reads_only_the_selected_blocks_and_the_window():
    made, x = mixer(n_select=3), inputs(1, 40)
    state = made.init_state(1, dtype=torch.float64)
    for t in range(39):
        _, state = made.extend(x[:, t : t + 1], state)
    assert state.sliding.read()[0].shape[2] == 5
    assert state.recent.read()[0].shape[2] == 4
    keys, values = state.selected.read()
    # n = 3 leaves the forced blocks alone: 0, 8 and 9.
    keys[:, :, 4:32], values[:, :, 4:32] = torch.nan, torch.nan
    step, _ = made.extend(x[:, -1:], state)
    torch.testing.assert_close(step[:, 0], run(made, x)[:, -1])


def test_sizes_follow_the_configured_length():
    names = ("select_size", "block_size", "stride", "n_select", "window")

    def of(seq_len, **options):
        found = sizes(NSAConfig(**options), seq_len)
        return tuple(found[name] for name in names)

    assert of(131_072) == of(4096) == (64, 32, 16, 16, 512)
    assert of(1024) == (32, 16, 8, 8, 128)
    assert of(128) == (8, 4, 2, 4, 16)
    assert of(16) == (4, 2, 1, 4, 2)
    assert of(1) == (2, 1, 1, 4, 1)
    assert of(128, window=40, select_size=6) == (6, 4, 2, 4, 40)
    for seq_len in (16, 128, 512, 2048, 8192):
        select_size, _, _, n_select, window = of(seq_len)
        assert seq_len < 128 or n_select * select_size + window <= seq_len / 2


def test_scores_grow_with_a_sixteenth_of_the_length():
    """4·H·K FLOPs an entry, T/d + n·l' + w entries a token; φ costs the same a token at every length."""
    with torch.device("meta"):
        made = NSA(NSAConfig(), Dims(WIDTH, HEADS, 4096, 0, 1))

    def flops(time: int) -> float:
        x = torch.empty(1, time, WIDTH, device="meta")
        with flop_counter() as counter:
            run(made, x)
        return counter.get_total_flops() / time

    assert flops(65_536) - flops(8192) == pytest.approx(4 * WIDTH * (65_536 - 8192) / 16, rel=0.01)


def test_summaries_made_together_are_those_of_each_map():
    """Under autocast keys and values share each product; watched, every map is called."""
    m = NSA(NSAConfig(), Dims(48, 3, 128, layer=0, depth=1))
    x = torch.randn(2, 40, 48, generator=torch.Generator().manual_seed(0))
    found = []
    for watched in (False, True):
        hook = m.compress_k.up.register_forward_hook(lambda *_: None) if watched else None
        with torch.autocast("cpu", torch.bfloat16):
            y, _ = m(x, Context.of(torch.zeros(2, 40)))
        learned = [p for name, p in m.named_parameters() if name.startswith("compress")]
        found.append((y, *torch.autograd.grad(y.float().square().sum(), learned)))
    hook.remove()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
