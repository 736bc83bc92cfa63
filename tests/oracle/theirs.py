"""What `transformers` computes for the tiny models."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from .tiny import BETAS, DECAY, LEARNING_RATE, STEPS, TRAINED, Tensors, batch, sampled, tensors_of, write_config

VERSIONS = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}\n"


def loaded(directory: Path) -> Any:
    """The model, every tensor of which was found in the files, and no other."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def logits_of(directory: Path, tensors: Tensors) -> np.ndarray:
    """Of the model whose `config.json` is in the directory, with these tensors."""
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    tokens, targets = (torch.tensor(each, dtype=torch.long) for each in batch())
    with torch.no_grad():
        return loss_of(loaded(directory), tokens, targets)[0].numpy()


def loss_of(model: Any, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(input_ids=tokens, use_cache=False).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def in_files(model: Any, values: Any) -> Tensors:
    """Named as in files: what the model keeps together is taken apart by its own way to save it."""
    with torch.no_grad(), TemporaryDirectory() as folder:
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def answers(architecture: str) -> dict[str, np.ndarray]:
    tokens, targets = (torch.tensor(each, dtype=torch.long) for each in batch())
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        config = write_config(architecture, directory)
        tensors = tensors_of(config, architecture)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        model = loaded(directory)
        logits, loss = loss_of(model, tokens, targets)
        found = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
        if architecture in TRAINED:
            loss.backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            saved = in_files(loaded(directory), gradients)
            found |= {f"gradient {name}": sampled(saved[name]) for name in tensors}
            found["losses"] = np.array(trained(loaded(directory), tokens, targets), np.float32)
    return found


def trained(model: Any, tokens: torch.Tensor, targets: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, BETAS, eps=1e-8, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        _, loss = loss_of(model, tokens, targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses
