"""Twenty steps of a small model of every mixer, in one process or in shards on ranks."""

import torch
import torch.distributed as dist
from torch import Tensor

from support.contract_cases import SEQ_LEN, VOCAB, boundaries, keys, tokens
from zoo import Context, LanguageModel, ModelConfig, context_parallel, registry
from zoo.interfaces import set_step
from zoo.recompute import Recompute

TIME, STEPS, IGNORED = 48, 20, -100
DOCUMENTS = ((20, 5, 23), (48,), (3, 30, 15))


def batch(step: int) -> tuple[Tensor, Tensor, Context]:
    """Tokens, targets and context of a step: two rows, or documents whose borders differ from step to step."""
    rows = 2 if step % 2 else 1
    drawn = tokens(rows, TIME + 1, seed=step)
    targets = drawn[:, 1:].clone()
    targets[:, ::7] = IGNORED
    if rows == 2:
        return drawn[:, :-1], targets, Context.of(drawn[:, :-1], noise_keys=keys(2) + step)
    cu = boundaries(*DOCUMENTS[step // 2 % 3])
    return drawn[:, :-1], targets, Context.of(drawn[:, :-1], cu, keys(len(cu) - 1) + step)


def train(residual: str, channel: str, recompute: str) -> dict[str, Tensor]:
    """Losses and gradient norms [STEPS], and the parameters after them; on ranks if there is a group, else alone.

    Every mixer is in the model; the warm-up of gated sparse attention ends after two steps.
    """
    pattern = "".join(registry.mixer_by_letter())
    config = ModelConfig(d_model=24, n_heads=4, pattern=pattern, backend="auto")
    config.residual.name, config.channel.name = residual, channel
    model = LanguageModel(config, vocab_size=VOCAB, seq_len=SEQ_LEN, seed=1).double().train()
    model.recompute = Recompute(recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    set_step(model, 0, STEPS)
    losses, norms = [], []
    for step in range(STEPS):
        loss = micro_batch(model, *batch(step))
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        losses.append(loss.detach())
        set_step(model, step + 1, STEPS)
        optimizer.step()
        optimizer.zero_grad()
    out = {name: x.detach() for name, x in model.state_dict().items() if x.is_floating_point()}
    return {"losses": torch.stack(losses), "norms": torch.stack(norms), **out}


def micro_batch(model: LanguageModel, inputs: Tensor, targets: Tensor, ctx: Context) -> Tensor:
    """The loss of a batch, whose gradients are then in the parameters, whole on every rank."""
    if dist.is_initialized():
        ctx = ctx.cut()
        inputs, targets = ctx.shard.own(inputs), ctx.shard.own(targets)
    (nats, *_), aux = model(inputs, ctx, targets)
    loss = ctx.target_mean(nats, targets) + model.aux_loss(aux)
    loss.backward()
    if ctx.shard is not None:
        context_parallel.add_gradients(model.parameters(), ctx.shard)
    return loss
