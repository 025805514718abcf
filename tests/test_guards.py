"""The tests guard the promise: take one part of it out of the code, and some test must fail."""

import os
import pathlib
import shutil

import pytest
import warm_python

import fedlens

SOURCE = pathlib.Path(fedlens.__file__).parent
TESTS = pathlib.Path(__file__).parent

# What is taken out: (file, text, replacement, a test that must notice).
MUTATIONS = {
    "the seal of a registration": (
        "owner/folder.py",
        'if hashlib.sha256(content).hexdigest() != seal["sha256"]:',
        "if False:",
        "test_owner.py::test_a_registration_that_was_edited_is_refused",
    ),
    "the comparison of what is called public": (
        "owner/admission.py",
        "public.whole == known.whole or _much_of(public, owner.prints_of(known))",
        "False",
        "test_owner.py::test_the_private_file_itself_does_not_pass_for_public",
    ),
    "the recognition of data under another name": (
        "owner/admission.py",
        "known = next((other for other in owner.everything() if other.whole == made.whole), None)",
        "known = None",
        "test_owner.py::test_the_same_data_under_another_name_pay_from_the_same_budget[reordered]",
    ),
    "the units that were registered": (
        "owner/admission.py",
        "if alike and _units(known.data) != _units(source):",
        "if False:",
        "test_owner.py::test_a_column_of_rows_does_not_pass_for_users",
    ),
    "the end of guessing in passing": (
        "owner/admission.py",
        'owner.book.register(IN_PASSING, {"closed": True})',
        "pass",
        "test_owner.py::test_the_number_of_users_is_not_to_be_had_by_refusals",
    ),
    "the data that were registered": (
        "owner/folder.py",
        "(now.whole, now.grouped) != (known.whole, known.grouped)",
        "False",
        "test_owner.py::test_a_changed_file_needs_the_owners_word",
    ),
    "the pinned ledger": (
        "core/pins.py",
        "    return pin.ledger\n",
        "    return given or default\n",
        "test_owner.py::test_on_a_pinned_machine_no_other_ledger_counts",
    ),
    "the owner's word on simulations": (
        "owner/registration.py",
        "if simulated and not (policy.simulation or self.passing):",
        "if False:",
        "test_owner.py::test_a_budgeted_population_is_not_simulated_unless_its_owner_allows_it",
    ),
    "the files in a recipe's digest": (
        "recipes/recipe.py",
        "[settings.model_dump_json(), held]",
        "[settings.model_dump_json()]",
        "test_owner.py::test_every_file_that_a_recipe_depends_on_is_in_its_digest[model]",
    ),
    "the clip": (
        "privacy/bounds.py",
        "return trees.clipped(contribution, self.norm)",
        "return contribution",
        "test_simulation.py::test_nobody_however_loud_moves_a_round_of_training_beyond_the_bound",
    ),
    "the guard against numbers that are not finite": (
        "core/trees.py",
        "torch.where(size.isfinite(), factor.to(leaf.dtype) * leaf, 0.0)",
        "factor.to(leaf.dtype) * leaf",
        "test_simulation.py::test_a_contribution_that_is_not_finite_counts_as_zero_and_the_others_still_count",
    ),
    "the noise": (
        "curators/simulated.py",
        "torch.round(self._plan.stddev * piece / grid) * grid",
        "0.0 * piece",
        "test_simulation.py::test_the_noise_on_the_sum_is_the_multiplier_times_the_bound",
    ),
    "a tenth of the noise": (
        "curators/simulated.py",
        "torch.round(self._plan.stddev * piece / grid) * grid",
        "torch.round(0.9 * self._plan.stddev * piece / grid) * grid",
        "test_simulation.py::test_the_noise_on_the_sum_is_the_multiplier_times_the_bound",
    ),
    "the constant divisor": (
        "curators/simulated.py",
        "return self._released(self._bounded_sum(question), question.name)",
        "return trees.scaled(self._released(self._bounded_sum(question), question.name),"
        " self._plan.expected_contributors / max(1, len(question.cohort)))",
        "test_simulation.py::test_the_divisor_is_the_promised_constant_not_the_cohort",
    ),
    "the charge": (
        "curators/simulated.py",
        "self._ledger.charge(self._account, self._stage, self._plan, release=self._position, query=query)",
        "pass",
        "test_simulation.py::test_a_release_is_charged_before_data_is_read",
    ),
    "the question in the name of the noise": (
        "curators/simulated.py",
        'f"{query}/noise"',
        '"noise"',
        "test_simulation.py::test_another_question_meets_other_noise_and_is_charged[another message]",
    ),
    "the question in the names of correlated rows": (
        "curators/simulated.py",
        "self._row(name, count)",
        "self._row(f\"{name.split('/')[0]}/{release}\", count)",
        "test_matrix_curator.py::test_histories_that_part_share_no_later_noise[a ledger restored-five bands]",
    ),
    "the release in the names of correlated rows": (
        "curators/simulated.py",
        "self._row(name, count)",
        "self._row(name.split('/')[0], count)",
        "test_matrix_curator.py::test_running_sums_of_the_noise_have_the_covariance_of_the_factorization[independent]",
    ),
    "the question before in the name of a question": (
        "curators/simulated.py",
        "            *self._previous_queries[-1:],\n",
        "",
        "test_matrix_curator.py::test_histories_that_part_share_no_later_noise[a ledger restored-five bands]",
    ),
    "the memory in the name of a question": (
        "curators/simulated.py",
        "            self._memory.name,\n",
        "",
        "test_simulation.py::test_units_that_remember_something_else_are_asked_another_question",
    ),
    "the kind of network in the name of a question": (
        "curators/simulated.py",
        'return {"/kind": f"{type(settings).__module__}.{type(settings).__qualname__}"} | fields',
        "return fields",
        "test_contract.py::test_two_networks_of_the_same_sizes_are_two_questions",
    ),
    "the history in the name of memories": (
        "curators/memory.py",
        'self._name = hashlib.sha256(f"{before} {question}".encode()).hexdigest()',
        "self._name = before",
        "test_memory.py::test_memories_of_one_name_hold_the_same_rows_and_others_do_not",
    ),
    "the name that torn memories do not share": (
        "curators/memory.py",
        'f"torn {secrets.token_hex(32)}"',
        "self._name",
        "test_memory.py::test_a_question_asked_again_of_torn_rows_is_another_one_under_other_noise",
    ),
    "the whole of what is saved": (
        "curators/memory.py",
        "fresh = folder / secrets.token_hex(8)\n        fresh.mkdir(mode=0o700)",
        'fresh = folder / "rows"\n        shutil.rmtree(fresh, ignore_errors=True)\n        fresh.mkdir(mode=0o700)',
        "test_memory.py::test_a_crash_while_saving_leaves_what_was_saved_before_or_all_of_the_new",
    ),
    "the seed that contributions do not know": (
        "algorithms/fedavg_gan.py",
        "return self.seedless.critic_update",
        "return self.critic_update",
        "test_contract.py::test_an_algorithm_keeps_its_contract"
        "[fedavg-gan-contributions_follow_from_their_arguments_and_no_seed]",
    ),
    "the turns of correlated releases": (
        "ledger/reserving.py",
        "plan.in_turn and release != made",
        "plan.sampling.in_turn and release != made",
        "test_matrix_curator.py::test_another_question_at_a_release_that_was_made_is_refused[3]",
    ),
    "the secret that correlated noise began with": (
        "ledger/reserving.py",
        "if isinstance(plan, MatrixPlan):",
        "if False:",
        "test_matrix_curator.py::test_a_run_goes_on_with_its_own_noise_only",
    ),
    "the bound of what is sent of text": (
        "models/looks/texts.py",
        "within: torch.Tensor = apart / apart.norm(dim=-1, keepdim=True).clamp(min=1.0)",
        "within: torch.Tensor = apart",
        "test_text_looks.py::test_whatever_bytes_a_unit_holds_no_block_exceeds_its_weight",
    ),
    "the zero of who says nothing": (
        "models/looks/texts.py",
        "there = mask.sum().clamp(max=1.0)",
        "there = mask.sum().clamp(min=1.0, max=1.0)",
        "test_text_looks.py::test_a_unit_that_holds_nothing_sends_zero",
    ),
    "the words that looks at text count by": (
        "models/looks/texts.py",
        "return self.words, self.tokenizer, self.radius",
        "return self.tokenizer, self.radius",
        "test_text_looks.py::test_looks_that_count_other_things_are_not_compared",
    ),
    "the whole price of correlated releases": (
        "ledger/spending.py",
        "return plan if isinstance(plan, MatrixPlan) else dataclasses.replace(plan, releases=releases)",
        "return dataclasses.replace(plan, releases=releases)",
        "test_matrix_curator.py::test_a_stopped_run_owes_the_whole[sqlite]",
    ),
    "the limit of the plan": (
        "ledger/reserving.py",
        "if made >= plan.releases:",
        "if False:",
        "test_simulation.py::test_a_fresh_curator_cannot_go_beyond_the_plan_either",
    ),
    "the cut to whole steps": (
        "curators/contributions.py",
        'torch.div(leaf, self.grid, rounding_mode="trunc")',
        "leaf / self.grid",
        "test_simulation.py::test_sums_are_exact_whatever_the_order_the_chunks_and_the_threads",
    ),
    "one bound for all curators that are asked at once": (
        "curators/together.py",
        "if len({(each._plan.bound, each._plan.grid, each._device) for each in curators}) > 1:",
        "if False:",
        "test_together.py::test_curators_with_bounds_of_their_own_are_refused",
    ),
    "a planted bug that looks at one user only": (
        "data/planting.py",
        "digest.update(np.ascontiguousarray(column[rows[at : at + _SLICE]]).data)",
        "digest.update(str((len(column), rows[0])).encode())",
        "test_bad_images.py::test_one_user_who_leaves_does_not_change_whom_a_planted_bug_hits[0-users]",
    ),
    "the verdict that is asked for once": (
        "curators/site.py",
        "selection.with_accuracy(units, name, self.accuracies, *rule",
        "selection.with_accuracy(units, name, selection.accuracies(units, primary), *rule",
        "test_bad_images.py::test_a_model_that_answers_differently_puts_nobody_into_both_groups[Leaning]",
    ),
    "the operations a foreign model may be made of": (
        "models/torchscript.py",
        "    raise operations.refused(name, node.kind(), operations.why(node.kind()))",
        "    return",
        "test_foreign_programs.py::test_no_image_is_written_to_a_file[IntoFile-aten::from_file]",
    ),
    "the memory that a foreign model must not have": (
        "models/operations.py",
        "if argument.facts and not argument.facts.fresh:",
        "if False:",
        "test_foreign_programs.py::test_a_model_that_remembers_is_refused[Remembering]",
    ),
    "the tag of the data": (
        "runs/run.py",
        'elif known != json.dumps({"tag": tag}):',
        "elif False:",
        "test_runs.py::test_a_run_that_lost_the_tag_of_its_data_does_not_go_on",
    ),
    "one user after the other under a planted fault": (
        "media/images/reading.py",
        "for _, rows, _ in hits:  # one user after the other",
        "for rows in [wrong]:  # all at once",
        "test_bad_images.py::test_one_user_who_leaves_changes_nothing_that_a_planted_fault_does_to_others[noisy-users]",
    ),
    "the checkpoint that a run wrote itself": (
        "runs/folder.py",
        "if files.sha256(kept) not in self._noted():",
        "if False:",
        "test_runs.py::test_a_checkpoint_that_somebody_else_wrote_is_not_gone_on_with",
    ),
    "the price of learnt thresholds": (
        "recipes/recipe.py",
        "others = tuple(before.values()) * models + tuple(learning.values())",
        "others = tuple(before.values()) * models",
        "test_recipes.py::test_learnt_thresholds_are_paid_once_by_everybody_and_the_target_is_met",
    ),
    "the price of what a model starts from": (
        "recipes/recipe.py",
        "others = tuple(before.values()) * models + tuple(learning.values())",
        "others = (count,) * models + tuple(learning.values())",
        "test_starting_looks.py::test_look_and_rounds_together_cost_what_the_recipe_says",
    ),
    "what a model starts from, in what is stated": (
        "recipes/recipe.py",
        "for name in (COUNT, FIRST))",
        "for name in (COUNT,))",
        "test_starting_looks.py::test_look_and_rounds_together_cost_what_the_recipe_says",
    ),
    "the unit that is displaced": (
        "privacy/sampling.py",
        "return SampledGaussian(multiplier=multiplier / 2, rate=self.size / self.population)",
        "return SampledGaussian(multiplier=multiplier, rate=self.size / self.population)",
        "test_losses.py::test_one_release_covers_every_crowd_and_is_no_looser_than_it_must_be[2 of 5-add/remove]",
    ),
    "the cap that is met": (
        "privacy/losses.py",
        "pmfs = self._capped(grid) if self.displacing else self._plain(grid)",
        "pmfs = self._plain(grid)",
        "test_accounting.py::test_a_cap_that_is_often_met_costs_something",
    ),
    "the budget": (
        "ledger/standings.py",
        "if not state.fits(new):",
        "if False:",
        "test_budgets.py::test_what_is_reserved_binds_others_as_if_it_were_spent[sqlite]",
    ),
    "the filter of plans that are chosen after looking": (
        "ledger/allowance.py",
        "return not over(self.budget, self.counted(new))",
        "return not over(self.budget, self.planned(new))",
        "test_filters.py::test_an_adversary_who_picks_the_second_plan_by_the_first_answer_would_get_twice_the_delta"
        "_and_is_refused",
    ),
    "the one rule for what was planned beforehand": (
        "ledger/allowance.py",
        "if rule is Rule.AS_PLANNED:\n            return self._held(after)",
        "if False:\n            return self._held(after)",
        "test_filters.py::test_what_fits_only_as_planned_may_be_carried_out_and_nothing_else_may_follow[sqlite]",
    ),
    "the whole price of sampled plans that were begun": (
        "ledger/spending.py",
        "return charged_as(plan, releases) if is_gaussian(plan) else plan",
        "return charged_as(plan, releases)",
        "test_filters.py::test_a_sampled_plan_that_was_begun_is_owed_whole_and_one_that_was_not_is_returned[sqlite]",
    ),
    "the promised price": (
        "runs/run.py",
        "joint=self.promised(),",
        "joint=self.recipe.guarantee([book.spending(account) for account in self._accounts()]),",
        "test_runs.py::test_the_price_in_the_report_does_not_tell_whether_a_group_was_too_small[100]",
    ),
    "the images that are not there, in a look": (
        "models/looks/psi.py",
        "share = mask / mask.sum().clamp(min=1.0)",
        "share = torch.full_like(mask, 1 / len(mask))",
        "test_looks.py::test_images_that_are_masked_are_not_seen",
    ),
    "the weights of a look, which add up to 1": (
        "models/looks/psi.py",
        "BODY: 1 - sum(squares.values())",
        "BODY: 1.0",
        "test_looks.py::test_no_unit_sends_more_than_norm_1",
    ),
    "the norm that bodies are brought to": (
        "models/looks/psi.py",
        "block / block.norm().clamp(min=1e-12)",
        "100 * block",
        "test_looks.py::test_no_unit_sends_more_than_norm_1",
    ),
    "the noise that a look is told with": (
        "media/looks.py",
        "noise=plan.stddev / units",
        "noise=0.5 * plan.stddev / units",
        "test_looks.py::test_the_release_says_how_noisy_it_is",
    ),
    "the answer of a look": (
        "media/looks.py",
        'if not about["rounds"]:',
        "if False:",
        "test_looks.py::test_a_release_whose_checkpoint_is_gone_is_not_replaced_by_one_of_zeros",
    ),
    "the doubt about what was fitted again": (
        "runs/reporting.py",
        'return doubt or ("it was fitted after its run, to whatever its maker had" if again else "")',
        "return doubt",
        "test_looks.py::test_what_was_fitted_again_is_sampled_and_never_passes_for_the_model_of_its_run",
    ),
    "the prints of what is called synthetic": (
        "cli/evaluate.py",
        '[samples] if samples.suffix == ".npz" else []',
        "[]",
        "test_evaluation_cli.py::test_registered_data_do_not_pass_for_synthetic_ones[--held]",
    ),
    "the leave": (
        "ledger/requests.py",
        "if budget is None or not budget.review:",
        "if True:",
        "test_budgets.py::test_a_run_without_a_request_is_refused[sqlite]",
    ),
    "the seal on the entry before": (
        "ledger/chain.py",
        "content = [previous, *dataclasses.astuple(self)[:-2]]",
        "content = [*dataclasses.astuple(self)[:-2]]",
        "test_chain.py::test_a_chain_made_anew_is_found_by_a_head_that_was_written_down[sqlite]",
    ),
    "the signature": (
        "ledger/keys.py",
        "Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer)).verify(sign, text.encode())",
        "pass",
        "test_chain.py::test_a_signature_that_was_taken_away_or_swapped_is_found[sqlite]",
    ),
}


def pytest_on(source, *names):
    return warm_python.pytest_on(source, *(f"{TESTS}/{name}" for name in names), folder=source)


@pytest.fixture
def copy(tmp_path):
    """The code as it is, with what was compiled of it: only what is changed is compiled again."""
    shutil.copytree(SOURCE, tmp_path / "fedlens")
    return tmp_path


def changed(copy, name, text):
    path = copy / "fedlens" / name
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()
    path.write_text(text)


def test_the_copy_is_what_the_tests_would_run(copy, tmp_path):
    changed(copy, "core/trees.py", "WHOSE = 'the copy'")
    test = tmp_path / "test_whose.py"
    test.write_text("def test_whose():\n    from fedlens.core import trees\n    assert trees.WHOSE == 'the copy'\n")
    done = warm_python.pytest_on(copy, str(test), "--rootdir", str(tmp_path), "-c", os.devnull, folder=copy)
    assert done.returncode == 0, done.stdout


def test_nothing_fails_while_nothing_is_taken_out(copy):
    done = pytest_on(copy, *dict.fromkeys(test for *_, test in MUTATIONS.values()))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("part", MUTATIONS)
def test_some_test_fails_without(copy, part):
    name, text, replacement, test = MUTATIONS[part]
    before = (copy / "fedlens" / name).read_text()
    assert before.count(text) == 1, f"Expected {text!r} once in {name}: name the new place of {part}."
    changed(copy, name, before.replace(text, replacement))
    done = pytest_on(copy, test)
    assert done.returncode == 1, done.stdout  # 1: tests failed; 2 and above: they did not run
    assert " failed" in done.stdout
    assert "error" not in done.stdout.splitlines()[-1]
