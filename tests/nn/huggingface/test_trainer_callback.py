"""Leakage beside Hugging Face's trainer, and a private run with Opacus and adapters."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hf_models import collated, model

import seepage as sp

torch.set_num_threads(1)

HOW = {"noise_multiplier": 0.5, "max_grad_norm": 1.5}


def test_the_callback_measures_as_training_goes_on(tmp_path: Path) -> None:
    net, batch = model("gpt2"), collated("gpt2")
    begun = copy.deepcopy(net)
    callback = sp.nn.LeakageCallback(batch, every=2, **HOW)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{name: value[k] for name, value in batch.items()} for k in range(3)]
    transformers.Trainer(net, args, train_dataset=data, callbacks=[callback]).train()
    assert list(callback.history_) == [0, 2, 4]
    for step, one in ((0, begun.eval()), (4, net.eval())):
        leak = sp.nn.leakage(one, batch, **HOW).records("dfil", probes=8)
        np.testing.assert_allclose(callback.history_[step], leak, rtol=1e-5)
    assert callback.table("pandas")["worst"][0] == pytest.approx(np.max(callback.history_[0]))
    with pytest.raises(sp.InputError, match="number of steps above zero"):
        sp.nn.LeakageCallback(batch, every=0, **HOW)


def test_an_accountant_takes_the_model_s_own_loss() -> None:
    net, batch = model("gpt2"), collated("gpt2")
    run = sp.nn.FisherAccountant(net, "own", n=3, sample_rate=1.0, amplification="none", **HOW)
    step = run.observe(range(3), batch, batch["labels"], update=True)
    engine = sp.nn.Engine(net, "own", clip=sp.nn.HardClip(1.5))
    whole = engine.clipped_gradient(batch, batch["labels"])
    for name, part in whole.gradient.items():
        torch.testing.assert_close(step.gradient[name], part)
    assert np.isfinite(np.asarray(run.records("dfil"))).all()


def test_importing_the_package_imports_no_model_library() -> None:
    code = (
        "import sys, seepage as sp; sp.nn.leakage; sp.nn.token_leakage; "
        "print([name for name in ('transformers', 'peft', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
