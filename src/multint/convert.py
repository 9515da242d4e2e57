"""What can be done to a trained torch.nn layer?

``convert`` puts in the place of every nn.RNN, nn.LSTM, nn.GRU and cell of a model its MI twin, which computes the same function
(alpha = 0, beta1 = beta2 = 1) and can then learn to multiply. The arithmetic of the change is in ``load_state_dict`` of the layers.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from multint import layers

TWINS: dict[type[nn.Module], type[nn.Module]] = {
    nn.RNN: layers.MIRNN,
    nn.LSTM: layers.MILSTM,
    nn.GRU: layers.MIGRU,
    nn.RNNCell: layers.MIRNNCell,
    nn.LSTMCell: layers.MILSTMCell,
    nn.GRUCell: layers.MIGRUCell,
}
_NAMES = {kind.__name__ for kind in TWINS}
_HOOKS = ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks"]
_HOOKS += ["_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"]


def convert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """A model in which every torch.nn recurrent layer or cell is its MI twin, computing the same function to float rounding.

    The given model is left alone unless ``inplace``; a model that is itself such a layer comes back as the twin. Weight matrices
    keep their names (and in place, their identity, so an optimiser goes on with them); alpha, beta1, beta2 and the joined bias are
    new. A GRU's twin has ``reset_after=True`` and its update-gate vectors negated. What cannot be converted raises ValueError with
    the module's path and the reason, before anything is changed.

    >>> import torch
    >>> from torch import nn
    >>> tagger = nn.ModuleDict({"lstm": nn.LSTM(8, 16, bidirectional=True), "out": nn.Linear(32, 5)})
    >>> convert(tagger)["lstm"]
    MILSTM(8, 16, bidirectional=True)
    """
    for path, module in model.named_modules():
        reason = why_not(module)
        if reason is not None:
            raise ValueError(f"cannot convert {path or 'the model'} ({type(module).__name__}): {reason}")
    if not inplace:
        model = copy.deepcopy(model)
    twins = {module: twin(module) for module in model.modules() if type(module) in TWINS}
    for parent in model.modules():
        for name, child in parent._modules.items():  # named_children would name a module used twice only once
            if child in twins:
                parent._modules[name] = twins[child]
    return twins.get(model, model)


def why_not(module: nn.Module) -> str | None:
    """Why this module, not counting those inside it, cannot be converted; None if it can or need not be."""
    kind = type(module)
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return "DistributedDataParallel already tracks its parameters; convert the model, then wrap it"
    if isinstance(module, torch.jit.ScriptModule):
        scripted = getattr(module, "original_name", "") in _NAMES
        return "it is scripted; convert the original module" if scripted else None
    if kind.__module__.startswith("torch.ao.") and kind.__name__ in _NAMES:
        return "it is quantised; convert the float module, then quantise"
    if not isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        return None
    if parametrize.is_parametrized(module):
        return "its weights are parametrised; call torch.nn.utils.parametrize.remove_parametrizations first"
    if kind not in TWINS:
        base = next(b.__name__ for b in kind.__mro__ if b.__module__ == "torch.nn.modules.rnn")
        return f"it is a subclass of nn.{base} and may compute something else; replace it by hand"
    missing = [name for name in _expected(module) if name not in module._parameters]
    if missing:
        return f"{missing[0]} is not a plain parameter (weight_norm or prune?); make it permanent first"
    held = {**module._parameters, **module._buffers, **module._modules}
    extra = [name for name, value in held.items() if value is not None and name not in _expected(module)]
    if extra:
        return f"it holds {extra[0]} besides its weights, which its twin would lose; remove it first"
    if "forward" in vars(module):
        return "it has a forward of its own, which its twin would lose; replace it by hand"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return "it has hooks, which its twin would lose; remove them and register them again afterwards"
    return None


def _expected(module: nn.Module) -> list[str]:
    """Parameter names an untouched nn layer or cell has."""
    if isinstance(module, nn.RNNBase):
        return [name for names in module._all_weights for name in names]
    return ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if module.bias else [])]


def twin(module: nn.Module) -> nn.Module:
    """The MI layer or cell that computes what this torch.nn layer or cell computes."""
    first = next(module.parameters())
    # built without memory, so that no random numbers are drawn for values that are loaded next
    arguments: dict[str, Any] = {"bias": bool(module.bias), "device": "meta", "dtype": first.dtype}
    if isinstance(module, (nn.RNN, nn.RNNCell)):
        arguments["nonlinearity"] = module.nonlinearity
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        arguments["reset_after"] = True
    if isinstance(module, nn.RNNBase):
        arguments |= {name: getattr(module, name) for name in ("num_layers", "batch_first", "bidirectional")}
    if isinstance(module, nn.LSTM):
        arguments["proj_size"] = module.proj_size
    new = TWINS[type(module)](module.input_size, module.hidden_size, **arguments).to_empty(device=first.device)
    new.load_state_dict(module.state_dict())
    if isinstance(module, nn.RNNBase):
        setattr(new, "dropout", module.dropout)  # noqa: B010 - set here: one layer with dropout has had its warning
    learning = [name for name, p in module.named_parameters() if p.requires_grad]
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(any(n.startswith("bias") for n in learning) if name.startswith("bias") else bool(learning))
        if name in module._parameters:
            new._parameters[name] = module._parameters[name]
    return new.train(module.training)
