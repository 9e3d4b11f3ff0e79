"""Running the real program on a tiny synthetic task."""

from support.program import Lab, later_wins

TINY = [
    "device=cpu", "model.depth=1", "model.d_model=16", "model.n_heads=2", "data=mqar", "data.tasks.mqar.length=16",
    "data.tasks.mqar.pairs=2", "data.tasks.mqar.vocab=24", "data.batch_size=4", "trainer.max_steps=6",
    "trainer.log_every=2", "trainer.val_every=3", "trainer.checkpoint_every=2", "trainer.val_tokens=256",
    "evaluate.windows=32", "trainer.progress=false", "optim.warmup_steps=2",
]  # fmt: skip


class TaskLab(Lab):
    """Commands on a tiny task instead of a text."""

    def arguments(self, *more: str) -> list[str]:
        flags, words = ([word for word in more if word.startswith("-") is dashed] for dashed in (True, False))
        return [*flags, *later_wins([*TINY, f"results={self.results}", *words])]
