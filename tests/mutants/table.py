"""The mutants: a piece of code that occurs once in the sources, what is put in its place, and who must fail.

Tests are named by their file's name and theirs, wherever the file lies. ``or_else`` has other spellings of the same
code, for trees from before or after it was renamed.
"""

from __future__ import annotations

from dataclasses import dataclass

# Files of tests, and what they were called before.
RENAMED = {"test_scheduling.py": "test_dispatch.py", "test_lockstep.py": "test_ticks.py"}


@dataclass(frozen=True)
class Mutant:
    """``code`` becomes ``wrong``; the ``tests``, "test_file.py::test_name", must fail."""

    name: str
    code: str
    wrong: str
    tests: tuple[str, ...]
    or_else: tuple[tuple[str, str], ...] = ()
    long: bool = False  # no test of the short tier kills it

    @property
    def spellings(self) -> tuple[tuple[str, str], ...]:
        return ((self.code, self.wrong), *self.or_else)


def mutant(
    name: str, code: str, wrong: str, *tests: str, or_else: tuple[tuple[str, str], ...] = (), long: bool = False
) -> Mutant:
    return Mutant(name, code, wrong, tests, or_else, long)


BASE = (
    mutant(
        "a lock that several processes hold",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "test_driver.py::test_one_writer_at_a_time",
    ),
    mutant(
        "links in a folder are not looked for",
        "            if entry.is_symlink():",
        "            if False:",
        "test_security.py::test_links_in_a_runs_folder",
    ),
    mutant(
        "an alias of YAML that counts as one value",
        "anchor, size = None, sizes.get(event.anchor, 1)",
        "anchor, size = None, 1",
        "test_config_properties.py::test_sizes_of_aliases_are_those_of_what_they_stand_for",
    ),
)

ALGORITHM = (
    mutant(
        "a mark that wants all its fields",
        "if any(getattr(algorithm, name) == value for name, value in fields.items()):",
        "if all(getattr(algorithm, name) == value for name, value in fields.items()):",
        "test_hooks.py::test_a_mark_belongs_to_its_hook",
    ),
    mutant(
        "a hook that is idle and acts all the same",
        "return overrides(algorithm, hook) and not (is_idle is not None and is_idle(algorithm, context, phase))",
        "return overrides(algorithm, hook)",
        "test_hooks.py::test_phases_and_rounds_count",
    ),
    mutant(
        "a share of an epoch that is rounded down",
        "return math.ceil(Fraction(repr(epochs)) * per_pass)",
        "return math.floor(Fraction(repr(epochs)) * per_pass)",
        "test_phases.py::test_a_share_of_an_epoch_is_its_first_batches",
    ),
    mutant(
        "a target accuracy that must be exceeded",
        "if rule.accuracy is not None and accuracy >= rule.accuracy:",
        "if rule.accuracy is not None and accuracy > rule.accuracy:",
        "test_stop_rules.py::test_rules",
        "test_stop_rules.py::test_a_target_ends_a_run",
    ),
    mutant(
        "a stored round beyond a rule's end that is taken over",
        "            if end is None or end == found.round:",
        "            if True:",
        "test_stop_rules.py::test_a_rule_neither_harms_nor_trusts_the_store",
    ),
    mutant(
        "clients that are drawn though they are not there",
        "    there = clients if everybody else clients[is_present(seed, round, clients, participation)]",
        "    there = clients",
        "test_availability.py::test_cohorts_are_of_those_that_are_there",
        "test_availability.py::test_a_run_by_a_table",
    ),
    mutant(
        "held-out clients in cohorts and passes",
        "if client not in self.held_out]",
        "if True]",
        "test_held_out.py::test_training_is_as_if_they_held_nothing",
        "test_held_out.py::test_cohorts_and_the_largest_are_of_the_others",
    ),
    mutant(
        "a draw that is the same in every round",
        '{seed}/{purpose}/{round}/{client}"',
        '{seed}/{purpose}/{client}"',
        "test_driver.py::test_cohorts_are_keyed_by_round_and_drawn_without_replacement",
    ),
    mutant(
        "a draw that is the same for every seed",
        '{seed}/{purpose}/{round}/{client}"',
        '{purpose}/{round}/{client}"',
        "test_partition.py::test_depends_on_its_own_seed_alone",
    ),
    mutant(
        "a covariance with n in the denominator",
        "return self.scatter / (self.count - 1)",
        "return self.scatter / self.count",
        "test_moments.py::test_moments_of_a_split_are_those_of_the_whole",
        "test_ccvr.py::test_moments_of_clients_are_those_of_all_data",
    ),
    mutant(
        "a merge that forgets the distance of means",
        "torch.addcmul(a.scatter + b.scatter, a.count * share, outer)",
        "a.scatter + b.scatter",
        "test_moments.py::test_moments_of_a_split_are_those_of_the_whole",
    ),
    mutant(
        "a merge that takes one side's mean for both",
        "a.mean + share * delta, scatter)",
        "a.mean, scatter)",
        "test_moments.py::test_moments_of_a_split_are_those_of_the_whole",
    ),
    mutant(
        "local labels that are off by one",
        "torch.cumsum(class_counts > 0, 0) - 1",
        "torch.cumsum(class_counts > 0, 0)",
        "test_labels.py::test_spread_logits_give_the_local_labels_loss",
    ),
    mutant(
        "a mask of zeros for absent classes",
        "logits.masked_fill(class_counts == 0, -torch.inf)",
        "logits.masked_fill(class_counts == 0, 0.0)",
        "test_labels.py::test_absent_classes_have_no_gradient_and_no_probability",
    ),
    mutant(
        "steps in place of the accumulated weight",
        "(steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)",
        "steps",
        "test_golden.py::test_accumulation_of_momentum",
        "test_golden.py::test_accumulation_is_what_the_optimizer_does",
    ),
    mutant(
        "Nesterov's look-ahead left out",
        "return accumulation(momentum, steps + 1) - 1",
        "return accumulation(momentum, steps)",
        "test_golden.py::test_accumulation_is_what_the_optimizer_does",
    ),
)

MODELS = (
    mutant(
        "fan-in of the whole tensor",
        "bound = 1 / math.sqrt(module.weight[0].numel())",
        "bound = 1 / math.sqrt(module.weight.numel())",
        "test_models.py::test_initial_weights_are_torch_defaults",
    ),
    mutant(
        "a norm over classes",
        "F.normalize(self.weight, dim=1, eps=1e-12)",
        "F.normalize(self.weight, dim=0, eps=1e-12)",
        "test_heads.py::test_normalised_head",
    ),
    mutant(
        "a sub-network without channels",
        "return max(1, rounded)",
        "return rounded",
        "test_models.py::test_kept_channels",
    ),
    mutant(
        "widths rounded down",
        "math.floor(wanted / divisor + 0.5) * divisor",
        "math.floor(wanted / divisor) * divisor",
        "test_models.py::test_kept_channels",
    ),
    mutant(
        "an input gradient of the first layer",
        "return 6 * self.macs - 2 * self.first_macs",
        "return 6 * self.macs",
        "test_floor.py::test_small_networks_by_hand",
        "test_floor.py::test_torch_counts_the_same",
    ),
    mutant(
        "the head before the body",
        "        self.body = body  # registered first: in the flat vector the head is the tail",
        "        self.head = head\n        self.body = body",
        "test_models.py::test_body_and_head",
    ),
)

ALGORITHMS = (
    mutant(
        "FedAvg: a server step that is always the mean",
        'mean = server["weights"] + self.server_lr * (mean - server["weights"])',
        "pass",
        "test_reductions.py::test_differs_from_fedavg",
        "test_fedavgm.py::test_without_momentum_it_is_fedavg",
        "test_reductions.py::test_options_differ_from_each_other",
    ),
    mutant(
        "FedProx: a term of the wrong sign",
        'megabytes\n        return grad + (weights - received["weights"]).mul_(self.mu)',
        'megabytes\n        return grad - self.mu * (weights - received["weights"])',
        "test_fedprox.py::test_closed_form",
        "test_fedprox.py::test_updates_shrink_with_mu",
    ),
    mutant(
        "FedProx: a term outside of mu",
        'megabytes\n        return grad + (weights - received["weights"]).mul_(self.mu)',
        'megabytes\n        return grad + 2 * self.mu * (weights - received["weights"])',
        "test_fedprox.py::test_closed_form",
    ),
    mutant(
        "SCAFFOLD: the cohort in place of all clients",
        '"samples": pooled.weight / context.num_examples,  # pi_k = n_k / n',
        '"samples": 1.0,',
        "test_scaffold.py::test_server_control_is_the_mean_of_all",
        "test_golden.py::test_server_control_is_the_mean_of_all_clients",
    ),
    mutant(
        "SCAFFOLD: a correction of the wrong sign",
        '(received["control"] - state["control"])  # g_k(y) - c_k + c',
        '(state["control"] - received["control"])',
        "test_golden.py::test_scaffold_reaches_the_optimum_where_fedavg_is_biased",
        "test_scaffold.py::test_one_full_step_of_all_is_fedsgd_in_every_round",
    ),
    mutant(
        "SCAFFOLD: bare steps",
        "(run.lr * run.accumulation)  # (w - y_k) / (eta a_k)",
        "(run.lr * run.steps)",
        "test_golden.py::test_control_variate_of_a_linear_loss_is_its_gradient",
        "test_scaffold.py::test_control_of_a_linear_loss",
    ),
    mutant(
        "FedAvgM: (1 - beta) forgotten",
        'velocity = beta * velocity + ((1 - beta) * update if self.form == "ema" else update)',
        "velocity = beta * velocity + update",
        "test_fedavgm.py::test_forms_start_as_they_should",
    ),
    mutant(
        "FedAvgM: a look-ahead without beta",
        "step = update + beta * velocity if",
        "step = update + velocity if",
        "test_fedavgm.py::test_forms_start_as_they_should",
        "test_fedavgm.py::test_nesterov_is_one_step_ahead",
    ),
    mutant(
        "FedNova: normalised and never scaled back",
        'update = tau_eff * pooled.mean["direction"]',
        'update = pooled.mean["direction"]',
        "test_fednova.py::test_equal_steps_are_fedavg",
        "test_fednova.py::test_the_step_is_the_sum_over_clients",
    ),
    mutant(
        "FedNova: steps in place of a_k under a proximal term",
        "return (1 - (1 - pull) ** run.steps) / pull",
        "return run.steps",
        "test_fednova.py::test_accumulation_with_a_proximal_term",
    ),
    mutant(
        "FedNova: a limit on all clients alike",
        "torch.minimum(tau_eff, highest)) @",
        "tau_eff) @",
        "test_fednova.py::test_max_multiplier_holds_the_smallest_clients",
    ),
    mutant(
        "FedDC: the cohort's drift for everybody's",
        'server["mean_drift"] + share * (mean - server["weights"])',
        'server["mean_drift"] + (mean - server["weights"])',
        "test_feddc.py::test_server_follows_what_clients_keep",
    ),
    mutant(
        "FedDC: a drift of the wrong sign",
        '(weights - received["weights"] + state["drift"])',
        '(weights - received["weights"] - state["drift"])',
        "test_feddc.py::test_a_heavy_penalty_leads_to_minus_the_drift",
    ),
    mutant(
        "FedDC: sizes of clients that do not count",
        "return client.num_examples * client.context.num_clients / client.context.num_examples",
        "return 1.0",
        "test_feddc.py::test_first_round_is_fedprox",
    ),
    mutant(
        "MOON: the temperature multiplied",
        "similar / self.temperature, dim=1",
        "similar * self.temperature, dim=1",
        "test_moon.py::test_contrast_by_hand",
        "test_moon.py::test_bounds",
    ),
    mutant(
        "MOON: a queue that grows",
        '"previous": torch.cat((state["previous"], run.end[None]))[-self.buffer :],',
        '"previous": torch.cat((state["previous"], run.end[None])),',
        "test_moon.py::test_the_queue_is_first_in_first_out",
    ),
    mutant(
        "Ditto: a pull without its half",
        'return grad + (weights - received["weights"]).mul_(self.lam)  # grad f_k(v)',
        'return grad + 2 * (weights - received["weights"]).mul_(self.lam)  # grad f_k(v)',
        "test_ditto.py::test_the_personal_model_lies_between",
        "test_ditto.py::test_by_hand",
    ),
    mutant(
        "Per-FedAvg: a row in both halves",
        "(slice(cut), slice(cut, None))",
        "(slice(cut), slice(cut - 1, None))",
        "test_perfedavg.py::test_halves",
    ),
    mutant(
        "pFedMe: lambda left out of the outer step",
        "client.context.lr * self.lam * (inner.start - inner.end)",
        "client.context.lr * (inner.start - inner.end)",
        "test_pfedme.py::test_by_hand",
    ),
    mutant(
        "ClsProx: a pull of the wrong sign",
        "layout.head_of(grad) + self.mu * pull",
        "layout.head_of(grad) - self.mu * pull",
        "test_clsprox.py::test_the_term",
    ),
    mutant(
        "personal heads: a softmax over all classes",
        "own_classes: ClassVar[bool] = True",
        "own_classes: ClassVar[bool] = False",
        "test_labels.py::test_absent_rows_stay_zero",
        "test_fedrep.py::test_a_round_by_hand",
    ),
    mutant(
        "FedRep: the body before the head",
        "return (heads, body) if self.head_epochs else (body,)",
        "return (body, heads) if self.head_epochs else (body,)",
        "test_fedrep.py::test_a_round_by_hand",
    ),
    mutant(
        "FedBABU: the head is trained",
        '(Phase(trainable="all" if self.train_head else "body"),)',
        '(Phase(trainable="all"),)',
        "test_fedbabu.py::test_the_head_is_constant",
        "test_fedbabu.py::test_the_body_is_trained_as_if_the_head_had_no_gradient",
    ),
    mutant(
        "FedBABU: orthogonal rows of another length",
        "torch.cat(((left @ right).view(-1)",
        "torch.cat(((left @ right * 2).view(-1)",
        "test_fedbabu.py::test_orthogonal_heads",
    ),
    mutant(
        "class costs: no smoothing",
        "(hits.double() @ of_class + 1) / (of_class.sum(0) + 2)",
        "(hits.double() @ of_class) / of_class.sum(0)",
        "test_class_costs.py::test_quality_by_hand",
    ),
    mutant(
        "class costs: weights without mean 1",
        "return weights / weights.mean()",
        "return weights",
        "test_class_costs.py::test_balanced_classes_weigh_the_same",
        "test_class_costs.py::test_row_weights",
        "test_class_costs.py::test_hand_numbers",
    ),
    mutant(
        "CCVR: V Lambda for V sqrt(Lambda)",
        "(vectors * values.sqrt()) @ vectors.T",
        "(vectors * values) @ vectors.T",
        "test_ccvr.py::test_virtual_features_have_the_moments_they_were_drawn_from",
    ),
    mutant(
        "CCVR: a trace that is not divided by d",
        "level = covariance.trace() / features",
        "level = covariance.trace()",
        "test_ccvr.py::test_shrinkage_and_clipping",
    ),
    mutant(
        "server steps: Yogi as Adam",
        "second - (1 - beta2) * square * torch.sign(second - square)",
        "beta2 * second + (1 - beta2) * square",
        "test_pflego.py::test_server_optimizers_by_hand",
    ),
)

DATA = (
    mutant(
        "largest remainder: the smallest fractions first",
        'order = np.argsort(counts - exact, kind="stable")  # largest fraction first',
        'order = np.argsort(exact - counts, kind="stable")',
        "test_partition.py::test_largest_remainder_goes_to_the_largest_fractions",
    ),
    mutant(
        "a client that is full and gets more",
        "shares = shares * is_open",
        "shares = shares * 1.0",
        "test_partition.py::test_capped_clients_get_nothing_more",
    ),
    mutant(
        "one to four classes more than one",
        "rng.integers(2, 6)",
        "rng.integers(2, 5)",
        "test_partition.py::test_diverse_clients_have_two_to_five_classes_alike",
    ),
    mutant(
        "a repair that makes the giver too small",
        "np.minimum(counts, np.maximum(sizes - least, 0)[:, None])",
        "counts",
        "test_partition.py::test_a_giver_keeps_the_minimum",
    ),
    mutant(
        "CBFL's code: clipping at alpha 0.1 too",
        "if self.alpha < 0.1 or self.clients > 200:",
        "if self.alpha <= 0.1 or self.clients > 200:",
        "test_partition.py::test_cbfl_code_clips_where_the_authors_do",
        "test_partition.py::test_cbfl_code_replays_the_authors_sizes",
    ),
    mutant(
        "shards of unsorted labels",
        'by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]',
        "by_label = shuffled",
        "test_partition.py::test_shards_hold_few_classes",
    ),
    mutant(
        "an alpha that is its inverse",
        "return rng.dirichlet(np.full(parts, alpha), size=draws)",
        "return rng.dirichlet(np.full(parts, 1 / alpha), size=draws)",
        "test_partition.py::test_alpha_at_both_ends",
    ),
    mutant(
        "images that are not centred",
        "self.shift = (-mean / std)",
        "self.shift = (0 * mean / std)",
        "test_training.py::test_rows_are_normalised_and_left_alone",
    ),
    mutant(
        "a wrap that takes the wrong rows",
        "order[torch.arange(batch_size - short) % num_rows]",
        "order[torch.arange(batch_size - short) % 1]",
        "test_training.py::test_the_last_batch",
        "test_training.py::test_wrapping_a_client_smaller_than_half_a_batch",
    ),
    mutant(
        "the order of one pass for all",
        "        order = torch.randperm(num_rows, generator=rng)\n        batches",
        "        order = torch.arange(num_rows)\n        batches",
        "test_training.py::test_each_pass_has_a_new_order",
    ),
    mutant(
        "sizes that grow from nothing",
        "number = np.arange(1, clients + 1, dtype=float)",
        "number = np.arange(clients, dtype=float)",
        "test_given_partitions.py::test_sizes_are_those_given",
    ),
    mutant(
        "a field that came later in every digest",
        "written.items() if name not in neutral or value != neutral[name]}",
        "written.items()}",
        "test_given_partitions.py::test_digests_are_those_of_before",
    ),
    mutant(
        "a table of another content that is taken",
        "if content.sha256 != self.sha256:",
        "if False:",
        "test_table.py::test_a_changed_file_is_refused_and_a_run_goes_on_without_it",
    ),
    mutant(
        "a table that counts by its place",
        'if name != "file"}',
        "}",
        "test_table.py::test_content_counts_and_places_do_not",
    ),
)

EXPERIMENT = (
    mutant(
        "a rate that decays a round early",
        "return self.lr * self.lr_decay ** (round - 1)",
        "return self.lr * self.lr_decay**round",
        "test_golden.py::test_one_client_is_plain_training",
        "test_driver.py::test_two_stages_go_on_counting",
    ),
    mutant(
        "full batches that are stacked",
        'len(set(models)) > 1 or "full" in batch_sizes',
        "len(set(models)) > 1",
        "test_executor_rule.py::test_the_rule",
        "test_executor_rule.py::test_a_stage_with_full_batches_counts",
    ),
)

CLIENT = (
    mutant(
        "support and query exchanged",
        "cut = min(round(phase.support * len(order)), len(order) - 1)",
        "cut = min(round((1 - phase.support) * len(order)), len(order) - 1)",
        "test_phases.py::test_support_has_its_share",
    ),
    mutant(
        "a query that is empty",
        "cut = min(round(phase.support * len(order)), len(order) - 1)",
        "cut = round(phase.support * len(order))",
        "test_phases.py::test_support_has_its_share",
        "test_training.py::test_a_query_is_never_empty",
    ),
    mutant(
        "steps counted by passes",
        "            steps -= len(batches)\n",
        "            steps -= 1\n",
        "test_phases.py::test_a_repeated_batch_is_followed_by_the_next",
    ),
    mutant(
        "a mean of chunk means",
        'self._backward(net, batch_of, inputs, phase) * (len(inputs.rows["rows"]) / rows)',
        "self._backward(net, batch_of, inputs, phase) * 0.5",
        "test_training.py::test_a_full_batch_is_exact_over_chunks",
    ),
    mutant(
        "a state that is cut to the slice whatever its kind",
        "name: tensor[where] if algorithm.entries.get(name) is Kind.VECTOR else tensor",
        "name: tensor",
        "test_training.py::test_the_gradient_hook_sees_slices_that_fit",
        or_else=(
            (
                "{name: tensor[where] if kinds.get(name) is Kind.VECTOR else tensor for",
                "{name: tensor for",
            ),
        ),
    ),
    mutant(
        "a NaN that is a number",
        "if not (math.isfinite(low) and math.isfinite(high)):  # not a number",
        "if not math.isfinite(low):  # not a number",
        "test_failures.py::test_each_number_is_looked_at",
    ),
    mutant(
        "clients that all weigh the same in a sum",
        "total.add_(tensor, alpha=factor)",
        "total.add_(tensor)",
        "test_golden.py::test_sum_of_two_clients_by_hand",
        "test_golden.py::test_one_full_step_of_all_is_one_central_step",
    ),
    mutant(
        "a third block of half a cohort",
        "min(-(-count // 2), TOGETHER)",
        "min(count // 2, TOGETHER)",
        "test_lockstep.py::test_auto",
    ),
    mutant(
        "floats that count tensors",
        "entry, numbers = declared.get(name), math.prod(tensor.shape)",
        "entry, numbers = declared.get(name), 1",
        "test_messages.py::test_floats_are_those_of_the_table",
    ),
    mutant(
        "what arrives is not copied",
        "return {name: torch.tensor(array, device=device) for name, array in entries.items()}",
        "return {name: torch.from_numpy(array) for name, array in entries.items()}",
        "test_wire.py::test_what_arrives_is_copied",
    ),
    mutant(
        "a worker that writes to what others read",
        "tensor.detach().to(device, copy=True, memory_format=torch.contiguous_format)",
        "tensor.detach().to(device)",
        "test_workers.py::test_a_worker_alters_nothing_that_others_read",
    ),
    mutant(
        "a sum that goes on in a client's upload",
        "return self.clients > 1",
        "return self.clients > 0",
        "test_sums.py::test_what_a_client_sent_is_not_written_to",
    ),
    mutant(
        "neighbours that are no halves of a subtree",
        "first_of_both = self.first % (2 * self.places) == 0",
        "first_of_both = True",
        "test_sums.py::test_no_cut_no_order_and_no_tree_changes_a_bit",
    ),
    mutant(
        "a product that a card rounds once and a processor twice",
        "if factor == 1 or (tensor.dtype is torch.float32 and factor == int(factor) < EXACT):",
        "if True:",
        "test_sums.py::test_the_sum_is_the_trees",
    ),
    mutant(
        "a sum of two that is lost with the actor that was to add it",
        "self._pairs.append((addition.left, addition.right))",
        "pass",
        "test_resilient_calls.py::test_any_course_ends",
    ),
    mutant(
        "a frozen body whose statistics move",
        'return phase.trainable == "head" or phase.features == "cached"',
        'return phase.features == "cached"',
        "test_training.py::test_a_frozen_body_keeps_its_statistics",
    ),
    mutant(
        "BatchNorm of one row",
        "return 2 if net.layout.has_batchnorm and not freezes_body(phase) else 1",
        "return 1",
        "test_training.py::test_a_single_row_is_skipped_with_batchnorm_only",
    ),
    mutant(
        "an optimizer that forgets momentum",
        "            velocity,\n            weight_decay=local.weight_decay,\n            momentum=local.momentum,",
        "            velocity,\n            weight_decay=local.weight_decay,\n            momentum=0.0,",
        "test_training.py::test_local_optimizers_are_those_of_torch",
    ),
    mutant(
        "memory that is a client's fault",
        '"out of memory", "ALLOC_FAILED"',
        '"ALLOC_FAILED"',
        "test_failures.py::test_the_machine_never_costs_a_client",
    ),
)

RECORD = (
    mutant(
        "a tie that counts as least",
        "return np.diagonal(matrix) < others.min(axis=1)",
        "return np.diagonal(matrix) <= others.min(axis=1)",
        "test_matrices.py::test_which_rows_are_least_on_the_diagonal",
    ),
    mutant(
        "traffic of the last stage alone",
        "return rows.loc[(place < order[stage]) | here]",
        "return rows.loc[here]",
        "test_traffic.py::test_what_comes_before_a_round",
    ),
    mutant(
        "the cohort's traffic for one client's",
        '(taken["floats_up"] + taken["floats_down"]) / taken["clients"]',
        '(taken["floats_up"] + taken["floats_down"])',
        "test_traffic.py::test_one_client_by_hand",
    ),
    mutant(
        "eleven rounds for ten",
        'return [row["accuracy"] for row in evaluations if last - 10 < row["round"] <= last]',
        'return [row["accuracy"] for row in evaluations if last - 10 <= row["round"] <= last]',
        "test_driver.py::test_summary_has_what_is_promised",
        "test_cli.py::test_a_calibrated_run_is_told_by_stage",
        "test_driver.py::test_local_models_of_the_last_ten_rounds",
    ),
    mutant(
        "local models of eleven rounds",
        'return [row["local_accuracy"] for row in measured if last - 10 < row["round"] <= last]',
        'return [row["local_accuracy"] for row in measured if last - 10 <= row["round"] <= last]',
        "test_driver.py::test_local_models_of_the_last_ten_rounds",
    ),
)

WORKER = (
    mutant(
        "a step that costs nothing beside its rows",
        "return self.steps + self.rows / ROWS_PER_STEP[device]",
        "return self.rows / ROWS_PER_STEP[device]",
        "test_cost.py::test_cost_is_of_steps_and_rows",
    ),
    mutant(
        "steps at a head that cost what steps of everything do",
        'share = FORWARD if phase.trainable == "head" else 1.0',
        "share = 1.0",
        "test_cost.py::test_a_frozen_body_is_only_passed_forward",
    ),
    mutant(
        "the shortest call first",
        "key=lambda call: (costs[call], -call))  # the longest last",
        "key=lambda call: (-costs[call], -call))",
        "test_scheduling.py",
    ),
    mutant(
        "speeds that never fade",
        "(FADE * before[0] + seconds, FADE * before[1] + cost)",
        "(before[0] + seconds, before[1] + cost)",
        "test_scheduling.py",
    ),
    mutant(
        "calls of a dead actor that come last",
        "self._waiting += reversed(calls)",
        "self._waiting[:0] = reversed(calls)",
        "test_scheduling.py",
    ),
    mutant(
        "calls sent together beyond an actor's fair share",
        "too_long = cost * rate > SHORT or self._given[actor] + cost > share * (1 + 1e-9)",
        "too_long = cost * rate > SHORT",
        "test_scheduling.py",
        or_else=(
            (
                "too_long = cost * rate > SHORT_TRIP or self._given[actor] + cost > share * (1 + 1e-9)",
                "too_long = cost * rate > SHORT_TRIP",
            ),
        ),
    ),
)

SERVER = (
    mutant(
        "an entropy in nats",
        "float(-terms.sum(axis=1).mean() / math.log(counts.shape[1]))",
        "float(-terms.sum(axis=1).mean())",
        "test_label_entropy.py::test_balance_by_hand",
    ),
    mutant(
        "a batch larger than the client",
        "np.minimum(sizes, local.batch_size)",
        "np.maximum(sizes, local.batch_size)",
        "test_label_entropy.py::test_rows_of_a_step_by_hand",
        "test_label_entropy.py::test_a_single_class_beside_generated_rows",
    ),
    mutant(
        "a model that goes down once for each pass",
        "if self._sent.get(name) is not tensor}",
        "if True}",
        "test_ccvr.py::test_messages_are_counted_as_they_travel",
        "test_exchanges.py::test_what_is_sent_is_what_is_counted",
    ),
    mutant(
        "a last round that is not measured",
        "return self._is_end(at) or bool(every and at.round % every == 0)",
        "return bool(every and at.round % every == 0)",
        "test_driver.py::test_cadences_and_rows",
    ),
    mutant(
        "a client that is twice in a cohort",
        "size=min(int(wanted), len(there)), replace=False)",
        "size=min(int(wanted), len(there)), replace=True)",
        "test_driver.py::test_cohorts_are_keyed_by_round_and_drawn_without_replacement",
    ),
    mutant(
        "the same cohort in every round",
        'seeds.numpy_generator(seed, "cohort", round)',
        'seeds.numpy_generator(seed, "cohort")',
        "test_driver.py::test_cohorts_are_keyed_by_round_and_drawn_without_replacement",
    ),
)

ANALYSIS = (
    mutant(
        "a standard deviation with n in the denominator",
        "return float(sample.std(ddof=1)) if len(sample) > 1 else math.nan",
        "return float(sample.std(ddof=0)) if len(sample) > 1 else math.nan",
        "test_statistics.py::test_summary_of_a_sample",
    ),
    mutant(
        "one degree of freedom too many",
        "return scipy.stats.t.ppf((1 + confidence) / 2, np.asarray(counts) - 1)",
        "return scipy.stats.t.ppf((1 + confidence) / 2, np.asarray(counts))",
        "test_statistics.py::test_the_paired_interval_is_students",
    ),
    mutant(
        "a one-sided interval",
        "return scipy.stats.t.ppf((1 + confidence) / 2, np.asarray(counts) - 1)",
        "return scipy.stats.t.ppf(confidence, np.asarray(counts) - 1)",
        "test_statistics.py::test_the_paired_interval_is_students",
        "test_claims.py::test_a_wrong_claim_is_rarely_held_and_a_right_one_rarely_denied",
    ),
    mutant(
        "sums that are equal but for rounding",
        "tolerance = 1e-12 * np.abs(sample).sum()",
        "tolerance = -1e-12 * np.abs(sample).sum()",
        "test_statistics.py::test_sign_flips_counted_by_hand",
    ),
    mutant(
        "Holm's factors in the wrong order",
        "factors = np.arange(len(order), 0, -1)",
        "factors = np.arange(1, len(order) + 1)",
        "test_statistics.py::test_holm_by_hand",
    ),
    mutant(
        "adjusted values that fall below a smaller one's",
        "np.maximum.accumulate(factors * p_values[order])",
        "factors * p_values[order]",
        "test_statistics.py::test_holm_by_hand",
    ),
    mutant(
        "one sign fewer than the test needs",
        "return math.ceil(1 - math.log2(1 - confidence))",
        "return math.ceil(-math.log2(1 - confidence))",
        "test_statistics.py::test_the_interval_of_equal_differences",
    ),
    mutant(
        "contradictions without a correction for cells",
        "level = 1 - (1 - CONFIDENCE) / chances",
        "level = CONFIDENCE",
        "test_claims.py::test_a_wrong_claim_is_rarely_held_and_a_right_one_rarely_denied",
        "test_claims.py::test_not_held",
        "test_claims.py::test_undecided_says_how_many_seeds_would_decide",
    ),
    mutant(
        "one side of the margin forgotten",
        "held = -margin <= figures.low and figures.high <= margin",
        "held = figures.high <= margin",
        "test_claims.py::test_claims_of_equality",
    ),
    mutant(
        "failed trials that are left out",
        "against, in_favour = sample.failed",
        "against, in_favour = frozenset[int](), frozenset[int]()",
        "test_claims.py::test_a_failed_trial_speaks_against_its_setting",
        "test_claims.py::test_seeds_do_not_mend_a_failure",
    ),
    mutant(
        "settings that are equal though one of them failed",
        "against, in_favour = against | in_favour, against & in_favour",
        "pass",
        "test_claims.py::test_a_failed_trial_speaks_against_its_setting",
    ),
    mutant(
        "two ties that decide a claim",
        "value = mean(sample) if n >= rule.equal(confidence) else math.nan",
        "value = mean(sample) if n >= rule.equal(confidence) or not sample.any() else math.nan",
        "test_statistics.py::test_the_interval_of_equal_differences",
        "test_claims.py::test_equal_settings_do_not_help",
    ),
    mutant(
        "the smallest p of many cells",
        "p=float(np.max([cell.p for cell in cells])),",
        "p=float(np.min([cell.p for cell in cells])),",
        "test_claims.py::test_p_is_that_of_the_cell_which_shows_least",
    ),
    mutant(
        "a sign that is lost where smaller is better",
        "sign = 1 if claim.larger_is_better else -1",
        "sign = 1",
        "test_claims.py::test_a_target_that_was_never_reached_is_not_left_out",
    ),
    mutant(
        "an entry of the ledger that other bits confirm",
        'names = ("status", "weights", *metrics)',
        'names = ("status",)',
        "test_ledger.py::test_other_bits_confirm_nothing",
    ),
    mutant(
        "a confirmation that is good for all code",
        "any(one.sources == spec.sources() for one in entry.confirmed)",
        "entry.confirmed",
        "test_ledger.py::test_a_seed_that_other_code_computes_to_the_bit_confirms_an_entry",
    ),
    mutant(
        "a verdict under the second best settings beside another claim's",
        "then = [(number, row, _of_claim(second, row.claim)) for number, row in enumerate(best.rows, start=1)]",
        "then = [(number, row, second.rows[number - 1]) for number, row in enumerate(best.rows, start=1)]",
        "test_ledger.py::test_a_verdict_that_hangs_on_the_choice_is_named",
    ),
)

RUN = (
    mutant(
        "a fraction that a float rounds down",
        "int(participation.fraction * clients + 1e-9)",
        "int(participation.fraction * clients)",
        "test_driver.py::test_cohort_size",
    ),
    mutant(
        "an empty cohort from a small fraction",
        "max(int(participation.fraction * clients + 1e-9), 1)",
        "int(participation.fraction * clients + 1e-9)",
        "test_driver.py::test_cohort_size",
    ),
    mutant(
        "a hash that leaves out BatchNorm",
        "    for vector in (weights, buffers):\n        digest.update(",
        "    for vector in (weights,):\n        digest.update(",
        "test_driver.py::test_weights_sha256_is_of_weights_and_buffers",
    ),
)

STUDIES = (
    mutant(
        "a least time that the longest block is no part of",
        "least = max(trained, self.longest, self.transfer, self.addition)",
        "least = max(trained, self.transfer, self.addition)",
        "test_scaling_model.py::test_a_round_by_hand",
    ),
    mutant(
        "a most time in which more actors add side by side",
        "* self.longest + self.transfer + self.addition",
        "* self.longest + self.transfer + self.addition / actors",
        "test_scaling_model.py::test_a_round_by_hand",
    ),
    mutant(
        "a phase that is not left",
        "        finally:\n            self.turn(before)",
        "        finally:\n            pass",
        "test_stopwatch.py::test_phases_add_up_and_end",
    ),
    mutant(
        "a wrong factor in HSIC",
        "- 2 * both / (n - 2)",
        "- both / (n - 2)",
        "test_cka.py::test_both_estimators_are_their_definitions",
    ),
    mutant(
        "a Gram matrix that is not centred",
        "        part = part - part.mean(0)\n",
        "",
        "test_cka.py::test_both_estimators_are_their_definitions",
    ),
    mutant(
        "an optimizer whose vectors are forgotten",
        "return 4 + 2 * vectors",
        "return 4 + vectors",
        "test_floor.py::test_what_a_step_moves",
    ),
    mutant(
        "a lone row that BatchNorm is trained on",
        "if rows > 1 or not has_batchnorm]",
        "]",
        "test_floor.py::test_steps_and_rows",
    ),
    mutant(
        "a norm that is no mean",
        ".double().square().mean(1).sqrt()",
        ".double().square().sum(1).sqrt()",
        "test_images.py::test_distances_by_hand",
    ),
    mutant(
        "a row of the chunk for a row of the split",
        "best[closer], rows[closer] = found[closer], part[place[closer]]",
        "best[closer], rows[closer] = found[closer], place[closer]",
        "test_images.py::test_distances_by_hand",
    ),
)

SWEEPS = (
    mutant(
        "rounds that are shared beyond the shorter stage",
        "best = Needs(first, before + min(rounds, its_rounds))",
        "best = Needs(first, before + max(rounds, its_rounds))",
        "test_planning.py::test_short_prefixes_come_first_and_nobody_waits_for_a_longer_one",
    ),
    mutant(
        "rounds that the shorter stage does not have",
        "best = Needs(first, before + min(rounds, its_rounds))",
        "best = Needs(first, before + rounds)",
        "test_planning.py::test_short_prefixes_come_first_and_nobody_waits_for_a_longer_one",
    ),
    mutant(
        "a share that spans cards",
        'if name == "GPU" and amount < 1:',
        'if name == "GPU" and amount < 0:',
        "test_planning.py::test_shares_of_cards_limit_trials",
    ),
    mutant(
        "trials that leave a cluster idle",
        "if trials >= inside_slots:",
        "if trials >= 1:",
        "test_planning.py::test_where_trials_run",
    ),
)

MUTANTS = (
    *(BASE + ALGORITHM + MODELS + ALGORITHMS + DATA + EXPERIMENT + CLIENT),
    *(RECORD + WORKER + SERVER + ANALYSIS + RUN + STUDIES + SWEEPS),
)
