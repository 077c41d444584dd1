"""The patch engine: edits find their place, everything else stays, and the diff applies."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.records import Site
from ridgeline.records.edits import (
    AtStart,
    CallUnder,
    Edit,
    FirstOf,
    InsertAfter,
    InsertBefore,
    ReplaceCall,
    SetArgument,
    WrapWith,
)
from ridgeline.tune.patch import Patch, write_patch

AUTOCAST = 'torch.autocast("cpu", dtype=torch.bfloat16)'
SCRIPT = """\
#!/usr/bin/env python
'''Train something.'''
import torch
from torch import nn
from torch.utils.data import DataLoader as Loader


def main():
    model = nn.Linear(4, 2)
    # the optimizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # AdamW
    loader = Loader(
        data,
        batch_size=8,  # small
        shuffle=True,
    )
    for epoch in range(3):
        for x, y in loader:
            # forward
            output = model(x)
            loss = nn.functional.cross_entropy(output, y)

            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("done")


main()
"""
OPTIMIZER, LOADER, FORWARD, BACKWARD, STEP = 11, 12, 20, 24, 25


def at(line: int, file: str = "train.py") -> Site:
    return Site(file=file, line=line)


def patched(tmp_path: Path, *edits: Edit, script: str = SCRIPT, file: str = "train.py") -> Patch:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(textwrap.dedent(script).encode())
    return write_patch([("a-technique", edit) for edit in edits], tmp_path)


def source_of(patch: Patch) -> str:
    assert not patch.unplaced, patch.unplaced
    (text,) = patch.files.values()
    return text


def changed_lines(patch: Patch) -> list[str]:
    return [
        line
        for line in patch.diff.splitlines()
        if line[:1] in "+-" and not line.startswith(("+++", "---"))
    ]


def reason_of(patch: Patch) -> str:
    ((_, _, reason),) = patch.unplaced
    return reason


# -- arguments ----------------------------------------------------------------------------------


def test_an_argument_is_added_and_nothing_else_changes(tmp_path):
    patch = patched(
        tmp_path,
        SetArgument(site=at(OPTIMIZER), callee="AdamW", keyword="fused", value="True"),
    )
    assert changed_lines(patch) == [
        "-    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # AdamW",
        "+    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  # AdamW",
    ]


def test_a_call_over_several_lines_gets_a_line_more_and_keeps_its_comments(tmp_path):
    patch = patched(
        tmp_path,
        SetArgument(site=at(LOADER), callee="DataLoader", keyword="num_workers", value="2"),
        SetArgument(
            site=at(LOADER), callee="DataLoader", keyword="persistent_workers", value="True"
        ),
    )
    assert changed_lines(patch) == [
        "+        num_workers=2,",
        "+        persistent_workers=True,",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("AdamW(fused=False)", "AdamW(fused=True)"),
        ("AdamW()", "AdamW(fused=True)"),
        ("AdamW(p, fused=None, lr=1)", "AdamW(p, fused=True, lr=1)"),
        ("AdamW(p, **options)", 'AdamW(p, **{**options, "fused": True})'),
        ("AdamW(\n    p\n)", "AdamW(\n    p,\n    fused=True\n)"),
        (
            "AdamW(\n    p,\n    lr=1  # low\n)",
            "AdamW(\n    p,\n    lr=1,  # low\n    fused=True\n)",
        ),
        ("AdamW(p,\n      lr=1)", "AdamW(p,\n      lr=1,\n      fused=True)"),
        ("AdamW(*parts)", "AdamW(*parts, fused=True)"),
        ("AdamW(p,)", "AdamW(p, fused=True,)"),
    ],
)
def test_an_argument_finds_its_place_in_every_form_of_call(tmp_path, before, after):
    edit = SetArgument(site=at(1), callee="AdamW", keyword="fused", value="True")
    assert source_of(patched(tmp_path, edit, script=f"o = {before}\n")) == f"o = {after}\n"


def test_the_innermost_call_on_the_line_of_the_frame_is_meant(tmp_path):
    script = "loaders = [\n    DataLoader(a),\n    DataLoader(b),\n]\n"
    edit = SetArgument(site=at(3), callee="DataLoader", keyword="num_workers", value="2")
    assert "DataLoader(a),\n    DataLoader(b, num_workers=2)," in source_of(
        patched(tmp_path, edit, script=script)
    )


@pytest.mark.parametrize("callee", ["getattr(optim, name)", "OPTIMIZERS[name]", "optimizer_class"])
def test_a_class_that_is_chosen_at_run_time_gets_the_argument(tmp_path, callee):
    edit = SetArgument(site=at(1), callee="AdamW", keyword="fused", value="True")
    script = f"o = {callee}(m.parameters(), lr=f(1))\n".replace("f(1)", "float(1)")
    text = source_of(patched(tmp_path, edit, script=script))
    assert text == f"o = {callee}(m.parameters(), lr=float(1), fused=True)\n"


def test_without_a_site_every_call_in_the_files_is_set(tmp_path):
    script = """\
    from torch.nn.parallel import DistributedDataParallel as DDP
    first = DDP(a)
    if first:
        second = DDP(b, static_graph=False)
    """
    edit = SetArgument(
        files=("train.py",), callee="DistributedDataParallel", keyword="static_graph", value="True"
    )
    text = source_of(patched(tmp_path, edit, script=script))
    assert "DDP(a, static_graph=True)" in text
    assert "DDP(b, static_graph=True)" in text


# -- calls replaced -----------------------------------------------------------------------------


def test_a_call_that_is_a_statement_is_taken_away(tmp_path):
    script = "import gc\nfor x in y:\n    work(x)\n    gc.collect()\n"
    edit = ReplaceCall(site=at(4), callee="collect", code="")
    assert source_of(patched(tmp_path, edit, script=script)) == (
        "import gc\nfor x in y:\n    work(x)\n"
    )


def test_a_block_that_would_be_empty_gets_a_pass(tmp_path):
    script = "import gc\nif tired:\n    gc.collect()\n"
    edit = ReplaceCall(site=at(3), callee="collect", code="")
    assert source_of(patched(tmp_path, edit, script=script)).endswith("if tired:\n    pass\n")


def test_one_of_several_statements_on_a_line_is_taken_away(tmp_path):
    script = "for x in y: work(x); gc.collect()  # slow\n"
    edit = ReplaceCall(site=at(1), callee="collect", code="")
    text = source_of(patched(tmp_path, edit, script=script))
    assert text == "for x in y:\n    work(x)  # slow\n"


def test_a_call_whose_value_is_used_is_left_alone(tmp_path):
    edit = ReplaceCall(site=at(1), callee="collect", code="")
    patch = patched(tmp_path, edit, script="freed = gc.collect()\n")
    assert reason_of(patch) == "the value of collect is used at train.py:1"
    assert patch.diff == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("checkpoint(block, x, use_reentrant=False)", "block(x)"),
        ("checkpoint(self.block, x, mask=m)", "self.block(x, mask=m)"),
        ("checkpoint(lambda v: f(v), x)", "(lambda v: f(v))(x)"),
        ("checkpoint(\n    block,  # first\n    x,\n)", "block(x)"),
    ],
)
def test_a_wrapped_call_is_unwrapped(tmp_path, before, after):
    edit = ReplaceCall(site=at(1), callee="checkpoint", code="{0}({rest})", drop=("use_reentrant",))
    assert source_of(patched(tmp_path, edit, script=f"x = {before}\n")) == f"x = {after}\n"


def test_only_calls_that_pass_the_keyword_are_replaced(tmp_path):
    script = "a.zero_grad()\nb.zero_grad(set_to_none=False)\n"
    edit = ReplaceCall(
        files=("train.py",),
        callee="zero_grad",
        passing="set_to_none",
        code="{func}({args})",
        drop=("set_to_none",),
    )
    assert source_of(patched(tmp_path, edit, script=script)) == "a.zero_grad()\nb.zero_grad()\n"


@pytest.mark.parametrize("arguments", ["sde, y, times, motion, None, 0.1", "*given"])
def test_a_call_with_more_arguments_by_position_than_mean_the_same_is_left_alone(
    tmp_path, arguments
):
    edit = ReplaceCall(
        files=("train.py",),
        callee="sdeint_adjoint",
        code="torchsde.sdeint({args})",
        most_positional=5,
    )
    script = f"x = torchsde.sdeint_adjoint({arguments})\n"
    patch = patched(tmp_path, edit, script=script)
    assert not patch.files
    assert "more than 5 arguments by position" in reason_of(patch)


def test_the_first_alternative_that_fits_is_taken(tmp_path):
    edit = FirstOf(
        edits=(
            ReplaceCall(files=("train.py",), callee="set_num_threads", code="{func}(2)"),
            AtStart(files=("train.py",), code="torch.set_num_threads(2)"),
        )
    )
    script = "import torch\ntorch.set_num_threads(1)\n"
    assert source_of(patched(tmp_path, edit, script=script)) == (
        "import torch\ntorch.set_num_threads(2)\n"
    )
    assert changed_lines(patched(tmp_path, edit)) == ["+", "+torch.set_num_threads(2)"]


# -- statements inserted ------------------------------------------------------------------------


def test_a_statement_is_inserted_above_the_comment_of_the_next(tmp_path):
    edit = InsertBefore(site=at(OPTIMIZER), code="{model}.compile()")
    assert "    model = nn.Linear(4, 2)\n    model.compile()\n    # the optimizer\n" in source_of(
        patched(tmp_path, edit)
    )


def test_a_statement_is_inserted_before_the_loops(tmp_path):
    edit = InsertBefore(site=at(FORWARD), code="{model}.compile()", outside_loops=True)
    assert "    )\n    model.compile()\n    for epoch in range(3):\n" in source_of(
        patched(tmp_path, edit)
    )


def test_a_loop_that_makes_the_model_is_stayed_inside_of(tmp_path):
    script = """\
    for fold in folds:
        model = make(fold)
        for x in data:
            model(x).sum().backward()
    """
    edit = InsertBefore(site=at(4), code="{model}.compile()", outside_loops=True)
    text = source_of(patched(tmp_path, edit, script=script))
    assert "    model.compile()\n    for x in data:" in text


def test_a_loop_that_only_sets_something_of_the_model_is_left(tmp_path):
    script = """\
    for x in data:
        model.synchronised = x.last
        model(x).sum().backward()
    """
    edit = InsertBefore(site=at(3), code="{model}.compile()", outside_loops=True)
    assert source_of(patched(tmp_path, edit, script=script)).startswith("model.compile()\nfor x")


def test_without_a_loop_nothing_is_put_outside_of_it(tmp_path):
    script = "def step(model, x):\n    return model(x)\n"
    edit = InsertBefore(site=at(2), code="{model}.compile()", outside_loops=True)
    assert "no loop around train.py:2" in reason_of(patched(tmp_path, edit, script=script))


def test_every_model_of_an_optimizer_is_meant(tmp_path):
    script = "o = Adam([*encoder.parameters(), *self.decoder.parameters()])\n"
    edit = InsertBefore(site=at(1), code="{model}.compile()")
    assert source_of(patched(tmp_path, edit, script=script)).startswith(
        "encoder.compile()\nself.decoder.compile()\no = "
    )


def test_a_statement_after_knows_what_was_assigned(tmp_path):
    edit = InsertAfter(site=at(OPTIMIZER), code="watch({target})")
    assert "# AdamW\n    watch(optimizer)\n    loader" in source_of(patched(tmp_path, edit))


def test_imports_are_added_only_where_they_are_missing(tmp_path):
    edit = AtStart(files=("train.py",), code="gc.set_threshold(50_000)\ntorch.set_num_threads(2)")
    text = source_of(patched(tmp_path, edit))
    assert text.count("import torch\n") == 1
    assert (
        "as Loader\nimport gc\n\ngc.set_threshold(50_000)\ntorch.set_num_threads(2)\n\n\ndef"
        in text
    )


def test_the_start_of_the_first_file_that_may_be_changed_is_taken(tmp_path):
    edit = AtStart(files=("/elsewhere/train.py", "train.py", "train.py"), code="torch.f()")
    assert source_of(patched(tmp_path, edit)).count("torch.f()") == 1


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("x = 1\n", "import torch\n\ntorch.f()\nx = 1\n"),
        ("# a header\n\nx = 1\n", "# a header\n\nimport torch\n\ntorch.f()\nx = 1\n"),
        ('"""Doc."""\nx = 1\n', '"""Doc."""\nimport torch\n\ntorch.f()\nx = 1\n'),
        (
            "from __future__ import division\nimport a as t\nx = 1\n",
            "from __future__ import division\nimport a as t\nimport torch\n\ntorch.f()\nx = 1\n",
        ),
        (
            "try:\n    import torch\nexcept ImportError:\n    pass\nx = 1\n",
            "try:\n    import torch\nexcept ImportError:\n    pass\n\ntorch.f()\nx = 1\n",
        ),
    ],
)
def test_the_start_of_a_file_is_after_its_imports(tmp_path, script, expected):
    edit = AtStart(files=("train.py",), code="torch.f()")
    assert source_of(patched(tmp_path, edit, script=script)) == expected


# -- statements wrapped -------------------------------------------------------------------------


def autocast(line: int, until: int | None) -> WrapWith:
    return WrapWith(site=at(line), header=AUTOCAST, until=at(until) if until else None)


def test_forward_and_loss_go_under_autocast_up_to_the_backward(tmp_path):
    text = source_of(patched(tmp_path, autocast(FORWARD, BACKWARD)))
    assert (
        f"            # forward\n            with {AUTOCAST}:\n"
        "                output = model(x)\n"
        "                loss = nn.functional.cross_entropy(output, y)\n\n"
        "                optimizer.zero_grad()\n"
        "            loss.backward()\n"
    ) in text


def test_a_backward_inside_a_later_statement_ends_the_block(tmp_path):
    script = """\
    import torch
    for x in data:
        out = model(x)
        loss = out.sum()
        if big:
            loss.backward()
    """
    text = source_of(patched(tmp_path, autocast(3, 6), script=script))
    assert (
        f"    with {AUTOCAST}:\n        out = model(x)\n        loss = out.sum()\n    if big"
        in text
    )


def test_a_backward_elsewhere_leaves_the_call_alone_under_autocast(tmp_path):
    script = """\
    import torch
    def loss_of(model, x):
        out = model(x)
        return out.sum()
    loss_of(m, x).backward()
    """
    text = source_of(patched(tmp_path, autocast(3, 5), script=script))
    assert f"    with {AUTOCAST}:\n        out = model(x)\n    return out.sum()" in text


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "loss = model(x).sum(); loss.backward()  # both",
            f"with {AUTOCAST}:\n    loss = model(x).sum()\nloss.backward()  # both\n",
        ),
        (
            "model(x).sum().backward()",
            f"with {AUTOCAST}:\n    loss = model(x).sum()\nloss.backward()\n",
        ),
        (
            "(model(x).sum() / 4).backward()",
            f"with {AUTOCAST}:\n    loss = model(x).sum() / 4\nloss.backward()\n",
        ),
        (
            "model(x).loss.backward(retain_graph=True)",
            f"with {AUTOCAST}:\n    loss_ = model(x).loss\nloss_.backward(retain_graph=True)\n",
        ),
        (
            "accelerator.backward(model(x).sum())",
            f"with {AUTOCAST}:\n    loss = model(x).sum()\naccelerator.backward(loss)\n",
        ),
        (
            "f(criterion(\n    model(x),\n    y,\n)).backward()",
            f"""with {AUTOCAST}:
    loss = f(criterion(
        model(x),
        y,
    ))
loss.backward()
""",
        ),
        (
            "for x in data: model(x).sum().backward()",
            f"""for x in data:
    with {AUTOCAST}:
        loss = model(x).sum()
    loss.backward()
""",
        ),
    ],
)
def test_forward_and_backward_on_one_line_are_taken_apart(tmp_path, statement, expected):
    line = 3 if "\n" in statement else 2
    text = source_of(patched(tmp_path, autocast(line, line), script=f"import torch\n{statement}\n"))
    assert text == f"import torch\n{expected}"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("for a in model(x):\n    use(a)", "for a in outputs:\n    use(a)"),
        ("if model(x) > 0:\n    use(a)", "if outputs > 0:\n    use(a)"),
    ],
)
def test_a_call_in_the_head_of_a_statement_is_computed_beforehand(tmp_path, statement, expected):
    script = f"import torch\n{statement}\n"
    text = source_of(patched(tmp_path, autocast(2, None), script=script))
    expression = "model(x)" if statement.startswith("for") else "model(x) > 0"
    if not statement.startswith("for"):
        expected = expected.replace("outputs > 0", "outputs")
    assert text == f"import torch\nwith {AUTOCAST}:\n    outputs = {expression}\n{expected}\n"


def test_return_and_comprehension_are_wrapped_whole(tmp_path):
    script = "import torch\ndef f(x):\n    return [model(a) for a in x]\n"
    text = source_of(patched(tmp_path, autocast(3, None), script=script))
    assert f"    with {AUTOCAST}:\n        return [model(a) for a in x]\n" in text


@pytest.mark.parametrize(
    ("script", "line", "reason"),
    [
        ("while model(x):\n    pass\n", 1, "head of a `while`"),
        ("if a:\n    pass\nelif model(x):\n    pass\n", 3, "in an `elif`"),
        ("def f():\n    yield model(x)\n", 2, "half way"),
    ],
)
def test_a_call_that_cannot_be_wrapped_says_why(tmp_path, script, line, reason):
    assert reason in reason_of(patched(tmp_path, autocast(line, None), script=script))


def call_alone(line: int, *converts: bool) -> CallUnder:
    return CallUnder(site=at(line), header=AUTOCAST, converts=converts)


@pytest.mark.parametrize(
    ("statement", "converts", "expected"),
    [
        (
            "logits = model(x)",
            (True,),
            f"with {AUTOCAST}:\n    logits = model(x).float()\n",
        ),
        ("labels = model(x)", (False,), f"with {AUTOCAST}:\n    labels = model(x)\n"),
        (
            "loss = criterion(model(x), y)",
            (True,),
            f"with {AUTOCAST}:\n    outputs = model(x).float()\nloss = criterion(outputs, y)\n",
        ),
        (
            "total += ((model(x) - y) ** 2).mean()",
            (True,),
            f"""with {AUTOCAST}:
    outputs = model(x).float()
total += ((outputs - y) ** 2).mean()
""",
        ),
        (
            "logits, index, loss = model(x, y)",
            (True, False, True),
            f"""with {AUTOCAST}:
    logits, index, loss = model(x, y)
    logits = logits.float()
    loss = loss.float()
""",
        ),
        (
            "for x in data: use(model(x))",
            (True,),
            f"""for x in data:
    with {AUTOCAST}:
        outputs = model(x).float()
    use(outputs)
""",
        ),
    ],
)
def test_the_models_call_alone_is_put_under_autocast_and_the_loss_stays_outside(
    tmp_path, statement, converts, expected
):
    script = f"import torch\n{statement}\n"
    assert source_of(patched(tmp_path, call_alone(2, *converts), script=script)) == (
        f"import torch\n{expected}"
    )


@pytest.mark.parametrize(
    ("statement", "converts", "reason"),
    [
        ("out = model(x)", (), "goes on as one"),
        ("loss = f(model(x), y)", (True, True), "goes on as one"),
        ("loss = model(x) if x else y", (True,), "on a condition"),
        ("losses = [f(model(x)) for x in data]", (True,), "on a condition"),
        ("x = g(y); z = model(x)", (True,), "several statements"),
        ("if model(x):\n    pass", (True,), "head of a block"),
    ],
)
def test_a_call_that_cannot_be_had_alone_says_why(tmp_path, statement, converts, reason):
    patch = patched(tmp_path, call_alone(1, *converts), script=f"{statement}\n")
    assert reason in reason_of(patch)


def test_a_framework_that_runs_forward_and_backward_is_not_wrapped(tmp_path):
    wrap = autocast(2, 2)
    script = "settings = TrainingArguments()\nTrainer(model, settings).train()\n"
    reason = reason_of(patched(tmp_path, wrap, script=script))
    assert reason == "forward and backward both run inside the call at train.py:2"
    setting = SetArgument(
        files=("train.py",), callee="TrainingArguments", keyword="bf16", value="True"
    )
    text = source_of(patched(tmp_path, FirstOf(edits=(wrap, setting)), script=script))
    assert text.startswith("settings = TrainingArguments(bf16=True)\n")


def test_blocks_nest_when_one_holds_the_other(tmp_path):
    outer = WrapWith(site=at(FORWARD), header="model.no_sync()", through=at(BACKWARD))
    text = source_of(patched(tmp_path, autocast(FORWARD, BACKWARD), outer))
    assert f"            with model.no_sync():\n                with {AUTOCAST}:\n" in text
    assert "                loss.backward()\n            optimizer.step()\n" in text


def test_blocks_of_the_same_lines_share_a_with(tmp_path):
    again = WrapWith(site=at(FORWARD), header="timer()", until=at(BACKWARD))
    text = source_of(patched(tmp_path, autocast(FORWARD, BACKWARD), again))
    assert f"            with {AUTOCAST}, timer():\n" in text


def test_the_condition_of_the_step_decides_when_gradients_are_reduced(tmp_path):
    script = """\
    for i, x in enumerate(data):
        loss = ddp_model(x).sum()
        loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
    """
    edit = WrapWith(
        site=at(2),
        header="contextlib.nullcontext() if {condition} else {model}.no_sync()",
        through=at(3),
        stepping=at(5),
    )
    text = source_of(patched(tmp_path, edit, script=script))
    assert text.startswith("import contextlib\n")
    assert (
        "    with contextlib.nullcontext() if (i + 1) % 4 == 0 else ddp_model.no_sync():\n"
        "        loss = ddp_model(x).sum()\n        loss.backward()\n    if (i + 1)"
    ) in text


@pytest.mark.parametrize("name", ["i", "self.i"])
def test_a_condition_that_changes_in_between_is_not_used(tmp_path, name):
    script = f"""\
    for x in data:
        model(x).sum().backward()
        {name} += 1
        if {name} % 4 == 0:
            optimizer.step()
    """
    edit = WrapWith(site=at(2), header="f({condition})", through=at(2), stepping=at(5))
    assert "changes" in reason_of(patched(tmp_path, edit, script=script))


# -- several edits, bad places, formats -----------------------------------------------------------


def every_edit() -> list[Edit]:
    return [
        SetArgument(site=at(OPTIMIZER), callee="AdamW", keyword="fused", value="True"),
        SetArgument(site=at(LOADER), callee="DataLoader", keyword="num_workers", value="2"),
        InsertBefore(site=at(OPTIMIZER), code="{model}.to(memory_format=torch.channels_last)"),
        InsertBefore(site=at(OPTIMIZER), code="{model}.compile()"),
        InsertAfter(site=at(OPTIMIZER), code="gc.freeze()"),
        autocast(FORWARD, BACKWARD),
        AtStart(files=("train.py",), code="torch.set_num_threads(2)"),
        AtStart(files=("train.py",), code="gc.set_threshold(50_000)"),
        ReplaceCall(files=("train.py",), callee="zero_grad", code="{func}()"),
    ]


def test_edits_on_the_same_statement_all_arrive_in_order(tmp_path):
    text = source_of(patched(tmp_path, *every_edit()))
    assert (
        "    model.to(memory_format=torch.channels_last)\n    model.compile()\n"
        "    # the optimizer\n"
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  # AdamW\n"
        "    gc.freeze()\n"
    ) in text
    compile(text, "train.py", "exec")


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("tool", ["git", "patch"])
@pytest.mark.parametrize(
    ("file", "script"),
    [
        ("train.py", SCRIPT),
        ("a folder/deep/my train.py", SCRIPT),
        ("train.py", SCRIPT.rstrip("\n")),
        ("train.py", SCRIPT.replace("\n", "\r\n")),
        ("train.py", SCRIPT.replace("    ", "\t")),
        ("train.py", SCRIPT.replace("# forward", "# vorwärts \x0c →")),
    ],
)
def test_the_diff_applies_with_real_tools(tmp_path, tool, file, script):
    def moved(edit: Edit) -> Edit:
        changes = {}
        for name in ("site", "until"):
            site = getattr(edit, name, None)
            if site is not None:
                changes[name] = at(site.line, file)
        if getattr(edit, "files", None):
            changes["files"] = (file,)
        return type(edit)(**{f: getattr(edit, f) for f in edit.__slots__} | changes)

    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(script.encode())
    patch = write_patch([("t", moved(edit)) for edit in every_edit()], tmp_path)
    assert not patch.unplaced
    (tmp_path / "tuned.patch").write_bytes(patch.diff.encode())
    command = {
        "git": ["git", "apply", "tuned.patch"],
        "patch": ["patch", "-p1", "-s", "-i", "tuned.patch"],
    }[tool]
    environment = {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert path.read_bytes() == patch.files[path].encode()


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("nowhere.py", "is not there"),
        (textwrap.__file__, "belongs to a library"),
        ("/elsewhere/train.py", "lies outside of"),
    ],
)
def test_a_file_that_cannot_be_changed_says_why(tmp_path, file, reason):
    edit = AtStart(files=(file,), code="torch.f()")
    assert reason in reason_of(patched(tmp_path, edit))


def test_a_file_that_does_not_parse_says_why(tmp_path):
    edit = AtStart(files=("train.py",), code="torch.f()")
    assert "cannot be parsed" in reason_of(patched(tmp_path, edit, script="def f(:\n"))


def test_a_file_in_another_encoding_says_why(tmp_path):
    (tmp_path / "train.py").write_bytes(b"# coding: latin-1\nx = '\xe4'\n")
    patch = write_patch([("t", AtStart(files=("train.py",), code="f()"))], tmp_path)
    assert "not encoded in UTF-8" in reason_of(patch)


def test_a_call_that_is_not_there_says_what_was_looked_for(tmp_path):
    edit = SetArgument(site=at(OPTIMIZER), callee="SGD", keyword="fused", value="True")
    assert reason_of(patched(tmp_path, edit)) == "no call of SGD at train.py:11"


def test_an_edit_after_which_the_file_would_not_compile_is_left_out_alone(tmp_path):
    bad = InsertBefore(site=at(2), code="return 1")
    good = AtStart(files=("train.py",), code="torch.f()")
    patch = patched(tmp_path, bad, good, script="import torch\nx = 1\n")
    assert "would not compile" in reason_of(patch)
    assert [edit for _, edit in patch.placed] == [good]
    assert "torch.f()" in patch.diff


def test_no_edits_give_an_empty_diff(tmp_path):
    patch = patched(tmp_path)
    assert patch.diff == ""
    assert patch.files == {}


def test_two_files_share_a_diff(tmp_path):
    (tmp_path / "model.py").write_text("x = checkpoint(f, a)\n")
    patch = patched(
        tmp_path,
        ReplaceCall(site=at(1, "model.py"), callee="checkpoint", code="{0}({rest})"),
        AtStart(files=("train.py",), code="torch.f()"),
    )
    assert "--- a/model.py\n+++ b/model.py\n" in patch.diff
    assert "--- a/train.py\n+++ b/train.py\n" in patch.diff


# -- properties ---------------------------------------------------------------------------------

NAMES = st.sampled_from(["x", "y", "loss", "model", "data"])
SIMPLE = st.sampled_from(
    [
        "loss = model(x)", "x = 1  # note", "loss.backward()", "optimizer.step()", "pass",
        "optimizer = AdamW(\n    model.parameters(),\n    lr=1,\n)", "a = 1; b = model(y)",
        "y = '''\nno code\n'''", "# only a comment\nx = 2", "\n\nz = AdamW(p)",
        "model(x).backward()",
    ]
)  # fmt: skip


def indented(code: str) -> str:
    inside = False
    lines = []
    for line in code.split("\n"):
        lines.append(line if inside or not line else "    " + line)
        inside ^= line.count("'''") % 2 == 1
    return "\n".join(lines)


def blocks(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(children, min_size=1, max_size=4).map("\n".join)
    heads = st.sampled_from(
        ["for x in model(data):", "if x:", "while True:", "def f(a):", "with open(x) as y:", "try:"]
    )

    def joined(head: str, inner: str) -> str:
        # A function has room for a first statement when the body opens with a comment only.
        tail = "\nfinally:\n    pass" if head == "try:" else ""
        return f"{head}\n    pass\n{indented(inner)}{tail}"

    return st.builds(joined, heads, body)


SCRIPTS = st.lists(st.recursive(SIMPLE, blocks, max_leaves=8), min_size=1, max_size=6).map(
    lambda parts: "import torch\n" + "\n".join(parts) + "\n"
)


def edits_at(line: int, until: int) -> st.SearchStrategy[Edit]:
    return st.sampled_from(
        [
            SetArgument(site=at(line), callee="AdamW", keyword="fused", value="True"),
            InsertBefore(site=at(line), code="gc.collect()"),
            InsertAfter(site=at(line), code="gc.collect()"),
            InsertBefore(site=at(line), code="{model}.compile()", outside_loops=True),
            ReplaceCall(site=at(line), callee="step", code=""),
            autocast(line, until),
            WrapWith(site=at(line), header="timer()", through=at(until)),
            AtStart(files=("train.py",), code="gc.freeze()"),
        ]
    )


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), script=SCRIPTS)
def test_whatever_is_placed_parses_and_other_lines_stay(tmp_path, data, script):
    count = script.count("\n")
    numbers = st.integers(min_value=1, max_value=count)
    edits = [
        data.draw(edits_at(data.draw(numbers), data.draw(numbers)))
        for _ in range(data.draw(st.integers(min_value=0, max_value=4)))
    ]
    compile(script, "train.py", "exec")
    patch = patched(tmp_path, *edits, script=script)
    assert len(patch.placed) + len(patch.unplaced) == len(edits)
    for text in patch.files.values():
        compile(text, "train.py", "exec")
        removed = {line[1:] for line in changed_lines(patch) if line[0] == "-"}
        kept = [line for line in script.splitlines() if line not in removed]
        remaining = iter(text.splitlines())
        assert all(line in remaining for line in kept)  # in order, byte for byte
    if not patch.placed:
        assert patch.diff == ""


def test_a_patch_is_of_the_repository_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.tune.prove import patch_root, patched_variant, shadow

    (tmp_path / "repo" / ".git").mkdir(parents=True)
    script = tmp_path / "repo" / "jobs" / "train.py"
    script.parent.mkdir()
    script.write_text("print('as it stood')\n")
    monkeypatch.chdir(script.parent)
    root = patch_root(["train.py"])
    assert root == tmp_path / "repo"
    patched = tmp_path / "shadow"
    shadow({Path("jobs/train.py"): "print('patched')\n"}, root, patched, script)
    variant = patched_variant(["train.py"], root, patched)
    assert variant.command == [str(patched / "jobs" / "train.py")]
    assert variant.cwd == patched / "jobs"
    assert (patched / "jobs" / "train.py").read_text() == "print('patched')\n"
    assert script.read_text() == "print('as it stood')\n"


def test_reasons_that_lines_could_not_be_written_for_are_told_once_and_thrice_at_most() -> None:
    from ridgeline.tune.prove import _unplaced

    reasons = [(name, "there is no loop") for name in ("a", "b", "a")]
    assert _unplaced(reasons) == [
        "patch: a, b could not be written into the script, there is no loop"
    ]
    assert len(_unplaced([("a", f"reason {number}") for number in range(9)])) == 4
