"""Which test covers which exact oracle of the specification (section 14), and which public bug is killed where.

A mapping from an oracle's id to tests by file and function. A method's author adds the ids to WANTED and to COVERED.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.loops import each

FILES = {path.name: path for path in Path(__file__).parents[1].rglob("test_*.py")}


def series(prefix: str, last: int) -> list[str]:
    return [f"O-{prefix}{number}" for number in range(1, last + 1)]


WANTED = [
    *series("", 7),  # shared
    *series("P", 6),  # partitions
    *series("A", 3),  # FedAvgM
    *series("X", 3),  # FedProx
    *series("S", 7),  # SCAFFOLD
    *series("N", 5),  # FedNova
    *series("M", 4),  # MOON
    *series("DC", 6),  # FedDC
    *series("FM", 6),  # FedMix
    *series("C", 11),  # CBFL
    *series("R", 8),  # FedSER
    *(f"1.12.{number}" for number in range(1, 12)),  # CCVR: section 1.12 of its specification
    *(f"2.9.{number}" for number in range(1, 14)),  # PFLEGO and its family: section 2.9 of the same
    *(f"3.12.{number}" for number in range(1, 15)),  # CBHMA and its family: section 3.12 of the same
]

COVERED: dict[str, list[str]] = {
    "O-C1": [
        "test_class_samplers.py::test_balanced_by_hand",
        "test_class_samplers.py::test_each_is_a_distribution_that_never_prefers_what_there_is_more_of",
    ],
    "O-C2": ["test_cbfl.py::test_until_the_warm_up_ends_it_is_fedavg"],
    "O-C3": ["test_generators.py::test_the_gap_of_statistics_by_hand"],
    "O-C4": ["test_cbfl.py::test_soft_labels_see_no_constant_and_keep_their_scale"],
    "O-C5": ["test_cbfl.py::test_attention_maps"],
    "O-C6": ["test_cbfl.py::test_without_weight_generated_rows_still_reach_batchnorm"],
    "O-C7": [
        "test_cbfl.py::test_training_changes_neither_teacher_nor_generator",
        "test_generators.py::test_training_lowers_both_terms_and_leaves_the_model_alone",
    ],
    "O-C8": ["test_generators.py::test_training_lowers_both_terms_and_leaves_the_model_alone"],
    "O-C9": ["test_cbfl.py::test_generators_of_one_seed_are_one"],
    "O-C10": ["test_cbfl.py::test_refreshes", "test_cbfl.py::test_refreshes_of_the_paper"],
    "O-C11": ["test_messages.py::test_floats_are_those_of_the_table"],
    "O-1": [
        "test_golden.py::test_sum_of_two_clients_by_hand",
        "test_golden.py::test_identical_clients_give_the_same_model",
        "test_ray.py::test_bits_do_not_depend_on_actors_deaths_and_resumes",  # whoever finishes first
        "test_conformance.py::test_a_block_of_any_size_gives_the_same_weights",
    ],
    "O-2": ["test_golden.py::test_one_client_is_plain_training"],
    "O-3": ["test_golden.py::test_one_full_step_of_all_is_one_central_step"],
    "O-4": ["test_conformance.py::test_without_steps_nothing_moves"],
    "O-5": [
        "test_conformance.py::test_running_variances_stay_positive",
        "test_conformance.py::test_batchnorm_buffers_are_the_plain_sample_mean",
        "test_training.py::test_buffers_hold_running_statistics_and_no_counters",
        "test_fedavgm.py::test_running_variances_are_means_and_no_sums",
    ],
    "O-6": ["test_ray.py::test_bits_do_not_depend_on_actors_deaths_and_resumes"],
    "O-7": ["test_conformance.py::test_stop_and_resume_is_the_straight_run"],
    "O-P1": ["test_partition.py::test_every_sample_exactly_once"],
    "O-P2": ["test_partition.py::test_every_sample_exactly_once"],
    "O-P3": ["test_partition.py::test_alpha_at_both_ends"],
    "O-P4": [
        "test_partition.py::test_depends_on_its_own_seed_alone",
        "test_conformance.py::test_seed_changes_the_run_but_not_the_partition",
    ],
    "O-P5": ["test_partition.py::test_largest_remainder_is_within_one"],
    "O-P6": [
        "test_partition.py::test_cbfl_code_replays_the_authors_sizes",
        "test_partition.py::test_cbfl_code_clips_where_the_authors_do",
    ],
    "O-A1": ["test_fedavgm.py::test_without_momentum_it_is_fedavg", "test_reductions.py::test_reduces_to_fedavg"],
    "O-A2": ["test_fedavgm.py::test_a_constant_update_adds_up_to_a_geometric_series"],
    "O-A3": [
        "test_fedavgm.py::test_forms_start_as_they_should",
        "test_fedavgm.py::test_an_average_tends_to_the_update",
    ],
    "O-X1": ["test_reductions.py::test_reduces_to_fedavg"],
    "O-X2": ["test_fedprox.py::test_one_step_is_fedavg"],
    "O-X3": ["test_fedprox.py::test_closed_form", "test_fedprox.py::test_updates_shrink_with_mu"],
    "O-S1": [
        "test_golden.py::test_server_control_is_the_mean_of_all_clients",
        "test_scaffold.py::test_server_control_is_the_mean_of_all",
    ],
    "O-S2": ["test_reductions.py::test_reduces_to_fedavg", "test_scaffold.py::test_first_round_is_fedavg"],
    "O-S3": [
        "test_golden.py::test_options_agree_after_one_full_step",
        "test_scaffold.py::test_one_full_step_of_all_is_fedsgd_in_every_round",
    ],
    "O-S4": [
        "test_golden.py::test_control_variate_of_a_linear_loss_is_its_gradient",
        "test_scaffold.py::test_control_of_a_linear_loss",
    ],
    "O-S5": ["test_scaffold.py::test_identical_clients_need_no_correction"],
    "O-S6": [
        "test_golden.py::test_scaffold_reaches_the_optimum_where_fedavg_is_biased",
        "test_scaffold.py::test_a_sampled_cohort_reaches_the_optimum",
    ],
    "O-S7": ["test_scaffold.py::test_control_variates_cover_weights_and_no_buffers"],
    "O-N1": ["test_fednova.py::test_equal_steps_are_fedavg", "test_fednova.py::test_equal_steps_by_hand"],
    "O-N2": [
        "test_golden.py::test_accumulation_of_momentum",
        "test_golden.py::test_accumulation_is_what_the_optimizer_does",
        "test_fednova.py::test_accumulation_with_a_proximal_term",
        "test_fednova.py::test_direction_of_a_linear_loss",
    ],
    "O-N3": ["test_fednova.py::test_fixed_epochs_amplify_by_the_spread_of_sizes"],
    "O-N4": ["test_fednova.py::test_fixed_points"],
    "O-N5": ["test_messages.py::test_floats_are_those_of_the_table"],
    "O-M1": [
        "test_reductions.py::test_reduces_to_fedavg",
        "test_moon.py::test_its_control_is_fedavg_on_the_same_model",
    ],
    "O-M2": [
        "test_moon.py::test_a_previous_model_that_is_the_global_one_adds_nothing",
        "test_moon.py::test_first_participation_is_fedavg",
    ],
    "O-M3": ["test_moon.py::test_bounds"],
    "O-M4": ["test_moon.py::test_frozen_models_keep_their_statistics"],
    "O-DC1": ["test_feddc.py::test_first_round_is_fedprox"],
    "O-DC2": ["test_feddc.py::test_first_server_step_is_twice_the_mean"],
    "O-DC3": ["test_feddc.py::test_without_penalty_and_correction_it_is_not_fedavg"],
    "O-DC4": [
        "test_feddc.py::test_server_follows_what_clients_keep",
        "test_feddc.py::test_server_follows_what_clients_keep_in_a_run",
    ],
    "O-DC5": ["test_feddc.py::test_server_follows_what_clients_keep"],
    "O-DC6": ["test_feddc.py::test_a_heavy_penalty_leads_to_minus_the_drift"],
    "O-FM1": [
        "test_reductions.py::test_reduces_to_fedavg",
        "test_fedmix.py::test_no_mixing_is_fedavg_and_sends_nothing",
    ],
    "O-FM2": ["test_fedmix.py::test_global_mixup_to_first_order"],
    "O-FM3": ["test_fedmix.py::test_linear_in_the_partner"],
    "O-FM4": ["test_fedmix.py::test_naivemix_of_single_rows_is_global_mixup"],
    "O-FM5": ["test_fedmix.py::test_each_row_has_its_own_gradient"],
    "O-FM6": ["test_fedmix.py::test_averages_are_exchanged_and_counted_once"],
    "O-R1": [
        "test_reductions.py::test_reduces_to_fedavg",
        "test_fedser.py::test_without_sub_networks_it_is_fedavg",
        "test_fedser.py::test_running_statistics_belong_to_the_full_network",
        "test_training.py::test_a_narrow_net_leaves_statistics_alone_and_trains_the_full_weights",
    ],
    "O-R2": ["test_fedser.py::test_whole_width_on_the_same_images_adds_nothing"],
    "O-R3": [
        "test_fedser.py::test_a_sub_network_stands_alone",
        "test_models.py::test_sub_network_stands_alone",
        "test_architectures.py::test_sub_network_stands_alone",
    ],
    "O-R4": [
        "test_fedser.py::test_gradients_outside_the_slice_are_the_full_networks",
        "test_models.py::test_sub_network_leaves_the_rest_alone",
    ],
    "O-R5": ["test_models.py::test_kept_channels", "test_fedser.py::test_kept_with_a_divisor"],
    "O-R6": ["test_fedser.py::test_loss_by_hand"],
    "O-R7": ["test_fedser.py::test_a_run_is_evaluated_at_full_width"],
    "O-R8": ["test_messages.py::test_floats_are_those_of_the_table"],
    "1.12.1": [
        "test_moments.py::test_moments_of_a_split_are_those_of_the_whole",
        "test_moments.py::test_any_random_split",
        "test_ccvr.py::test_moments_of_clients_are_those_of_all_data",
    ],
    "1.12.2": ["test_moments.py::test_merging_knows_no_order", "test_moments.py::test_no_rows_change_nothing"],
    "1.12.3": ["test_moments.py::test_one_client_is_itself"],
    "1.12.4": ["test_ccvr.py::test_who_holds_what_is_no_matter"],
    "1.12.5": [
        "test_ccvr.py::test_virtual_features_have_the_moments_they_were_drawn_from",
        "test_ccvr.py::test_a_covariance_of_rank_one_gives_a_line",
    ],
    "1.12.6": ["test_ccvr.py::test_only_the_head_changes", "test_ccvr.py::test_without_epochs_nobody_is_asked"],
    "1.12.7": ["test_heads.py::test_normalised_head"],
    "1.12.8": ["test_reductions.py::test_reduces_to_fedavg", "test_clsprox.py::test_the_term"],
    "1.12.9": ["test_ccvr.py::test_the_calibrated_head_is_close_to_the_best_linear_one"],
    "1.12.10": [
        "test_cka.py::test_invariances",
        "test_cka.py::test_bounds",
        "test_cka.py::test_both_estimators_are_their_definitions",
        "test_cka.py::test_a_general_linear_map_is_seen",
        "test_cka.py::test_unrelated_activations",
    ],
    "1.12.11": ["test_ccvr.py::test_on_real_features_nothing_beats_the_oracle"],
    "2.9.1": [
        "test_pflego.py::test_a_full_round_is_one_step_on_the_joint_loss",
        "test_pflego.py::test_a_full_round_of_a_run_is_that_step_too",
    ],
    "2.9.2": ["test_pflego.py::test_a_full_round_is_one_step_on_the_joint_loss"],
    "2.9.3": ["test_pflego.py::test_steps_are_unbiased_over_all_cohorts"],
    "2.9.4": ["test_pflego.py::test_fedper_with_one_full_step_is_pflego_without_head_steps"],
    "2.9.5": ["test_fedrecon.py::test_gradients_are_pflegos"],
    "2.9.6": ["test_pflego.py::test_without_head_rate_tau_is_no_matter"],
    "2.9.7": ["test_pflego.py::test_cached_features_give_the_heads_gradient"],
    "2.9.8": [
        "test_pflego.py::test_who_does_not_take_part_keeps_its_head_and_bodies_do_not_move_on_clients",
        "test_pflego.py::test_no_head_travels",
        "test_pflego.py::test_a_head_in_an_upload_is_refused",
    ],
    "2.9.9": ["test_fedbabu.py::test_the_head_is_constant", "test_reductions.py::test_reduces_to_fedavg"],
    "2.9.10": ["test_fedrep.py::test_without_head_epochs_it_is_fedbabu", "test_fedrep.py::test_parts_and_phases"],
    "2.9.11": ["test_pflego.py::test_one_client_is_central_training"],
    "2.9.12": ["test_pflego.py::test_ten_times_the_gradient"],
    "2.9.13": ["test_pflego.py::test_the_joint_loss_falls_in_every_round"],
    "3.12.1": ["test_distillation.py::test_costs_that_are_constant_in_a_row_are_none"],
    "3.12.2": ["test_distillation.py::test_a_factor_of_a_row_cancels_in_the_printed_loss"],
    "3.12.3": [
        "test_class_costs.py::test_the_cost_matrix",
        "test_class_costs.py::test_costs_are_positive_and_least_on_the_diagonal",
        "test_class_costs.py::test_a_class_of_fewer_or_worse_teachers_costs_more",
        "test_class_costs.py::test_relabelling_classes_relabels_costs",
    ],
    "3.12.4": ["test_class_costs.py::test_balanced_classes_weigh_the_same"],
    "3.12.5": ["test_class_costs.py::test_hand_numbers"],
    "3.12.6": ["test_distillation.py::test_costs_only_add_to_the_labels_loss"],
    "3.12.7": ["test_distillation.py::test_where_the_students_answer_is_the_teachers"],
    "3.12.8": [
        "test_distillation.py::test_a_restricted_softmax_is_a_ratio_of_probabilities",
        "test_distillation.py::test_a_teacher_of_one_class_says_nothing",
        "test_distillation.py::test_logits_of_any_size",
    ],
    "3.12.9": [
        "test_distillation.py::test_uhc_recovers_what_the_teachers_are_parts_of",
        "test_distillation.py::test_parts_that_no_teacher_connects_are_not_compared",
    ],
    "3.12.10": [
        "test_distillation.py::test_offsets_and_the_order_of_teachers_are_no_matter",
        "test_class_costs.py::test_a_teachers_offset_is_no_matter",
        "test_class_costs.py::test_the_order_of_teachers_is_no_matter",
    ],
    "3.12.11": [
        "test_distillation.py::test_one_teacher_of_all_classes_is_hintons",
        "test_distillation.py::test_of_sets_that_do_not_meet_it_is_concatenation",
    ],
    "3.12.12": [
        "test_distillation.py::test_without_weight_answers_are_not_read",
        "test_answers.py::test_without_teachers_it_is_training_on_the_public_set",
    ],
    "3.12.13": ["test_class_sets.py::test_the_settings_have_the_stated_column_sums"],
    "3.12.14": [
        "test_cfl_amalgam.py::test_the_discrepancy",
        "test_cfl_amalgam.py::test_without_its_terms_it_is_skd2",
        "test_answers.py::test_without_features_amalgamation_is_distillation_of_merged_logits",
    ],
}

KILLED: dict[str, list[str]] = {  # public bugs, by their id in the specification or by where they are
    "E-06, wrong denominator": ["test_scaffold.py::test_a_server_control_that_is_not_the_mean_is_killed"],
    "E-06, control variates by process": ["test_scaffold.py::test_state_by_place_in_the_cohort_is_killed"],
    "E-06, G-07, E-07: rules for weights on BatchNorm's buffers": [
        "test_fedavgm.py::test_running_variances_are_means_and_no_sums"
    ],
    "4.2, bare steps under momentum": [
        "test_scaffold.py::test_wrong_control_variates_are_killed",
        "test_scaffold.py::test_bare_steps_under_momentum_diverge",
    ],
    "NIID-Bench, random start": ["test_scaffold.py::test_a_random_start_is_killed"],
    "Plato, FL4Health: samples or epochs for steps": [
        "test_scaffold.py::test_wrong_control_variates_are_killed",
        "test_fednova.py::test_wrong_normalisers_are_killed",
    ],
    "FedDC's repository, SCAFFOLD with two scales": ["test_scaffold.py::test_wrong_control_variates_are_killed"],
    "Flower, forgotten square; G-03, FedProx that ignores mu": ["test_fedprox.py::test_mutants_are_killed"],
    "G-02, MOON's random negative": ["test_moon.py::test_a_random_first_negative_is_killed"],
    "G-03, undecayed rate and mean steps in FedDC": ["test_feddc.py::test_wrong_corrections_are_killed"],
    "G-04, aliased proximal term and mixed normaliser": [
        "test_fedprox.py::test_mutants_are_killed",
        "test_fednova.py::test_wrong_normalisers_are_killed",
    ],
    "G-01, a Taylor term B times too small": ["test_fedmix.py::test_a_term_that_is_b_times_too_small_is_no_expansion"],
    "CCVR 1.11, moments of smduan, FL-bench and flearn": ["test_moments.py::test_public_bugs_are_caught"],
    "CCVR 1.11, a variance for a standard deviation": ["test_ccvr.py::test_a_wrong_sampler_is_caught"],
    "PFLEGO 2.8, I / |I_t| and alpha of the cohort": ["test_pflego.py::test_the_released_codes_scales_are_biased"],
    "G-06, Flower's FedAvgM is Nesterov's": ["test_fedavgm.py::test_mutants_are_killed"],
    "F-01, FedSER without mu, and KL from the student": ["test_fedser.py::test_wrong_losses_are_killed"],
    "FL-bench, FedBABU whose fixed head decays": ["test_fedbabu.py::test_heads_that_move_are_killed"],
    "KarhouTam and PFLEGO, FedRecon's heads kept or drawn anew": ["test_fedrecon.py::test_wrong_rounds_are_killed"],
}


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse(FILES[file].read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_oracle_is_covered() -> None:
    """Kills: an oracle that nobody has written down as a test."""
    assert set(COVERED) == set(WANTED)
    assert all(COVERED.values())


@each("claim", [*COVERED, *KILLED])
def test_the_tests_that_are_named_exist(claim: str) -> None:
    """Kills: a test that was renamed or dropped, and with it an oracle."""
    for name in {**COVERED, **KILLED}[claim]:
        file, _, function = name.partition("::")
        assert function.startswith("test_")
        assert function in functions(file), name
