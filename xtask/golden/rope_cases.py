"""The float cases of ropes that follow the length of a text."""

import torch

from cases import NO_SCALING, THETA, Case, llama, mutation


def rope_cases():
    yield Case(
        "llama_dynamic",
        "dynamic NTK: a prompt that stays short, one that is long, one that becomes long while generating; bfloat16 file",
        llama(head_dim=16, max_position_embeddings=40, rope_scaling={"factor": 6.0, "rope_type": "dynamic"}),
        [
            THETA,
            NO_SCALING,
            mutation("factor", {"rope_scaling": {"factor": 1.5}}),
            mutation("max_position_embeddings", {"max_position_embeddings": 30}),
        ],
        alternates={
            "config.type.json": lambda config: config | {"rope_scaling": {"factor": 6.0, "type": "dynamic"}},
        },
        dtype=torch.bfloat16,
        prompts=(7, 44, 28),
        grows=True,
        note="beyond 40 positions each call has a base by its length; cached keys keep theirs, as generate() has it",
    )
