"""The tests guard the promise: take one part of it out of the code, and some test must fail."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

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
        "found.whole == known.whole or _much_of(found, owner.prints_of(known))",
        "False",
        "test_owner.py::test_the_private_file_itself_does_not_pass_for_public",
    ),
    "the recognition of data under another name": (
        "owner/admission.py",
        "known = next((found for found in owner.everything() if found.whole == made.whole), None)",
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
        "(found.whole, found.grouped) != (known.whole, known.grouped)",
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
        "test_matrix_door.py::test_histories_that_part_share_no_later_noise[a ledger restored-five bands]",
    ),
    "the release in the names of correlated rows": (
        "curators/simulated.py",
        "self._row(name, count)",
        "self._row(name.split('/')[0], count)",
        "test_matrix_door.py::test_running_sums_of_the_noise_have_the_covariance_of_the_factorization[independent]",
    ),
    "the question before in the name of a question": (
        "curators/simulated.py",
        "            *self._earlier[-1:],\n",
        "",
        "test_matrix_door.py::test_histories_that_part_share_no_later_noise[a ledger restored-five bands]",
    ),
    "the turns of correlated releases": (
        "ledger/book.py",
        "plan.in_turn and release != made",
        "plan.sampling.in_turn and release != made",
        "test_matrix_door.py::test_another_question_at_a_release_that_was_made_is_refused[3]",
    ),
    "the secret that correlated noise began with": (
        "ledger/book.py",
        "if isinstance(plan, MatrixPlan) and self._began_otherwise(account.run, stage, query):",
        "if False:",
        "test_matrix_door.py::test_a_run_goes_on_with_its_own_noise_only",
    ),
    "the whole price of correlated releases": (
        "ledger/spending.py",
        "return plan if isinstance(plan, MatrixPlan) else dataclasses.replace(plan, releases=releases)",
        "return dataclasses.replace(plan, releases=releases)",
        "test_matrix_door.py::test_a_stopped_run_owes_the_whole[sqlite]",
    ),
    "the limit of the plan": (
        "ledger/book.py",
        "if made >= plan.releases:",
        "if False:",
        "test_simulation.py::test_a_fresh_curator_cannot_go_beyond_the_plan_either",
    ),
    "the cut to whole steps": (
        "curators/simulated.py",
        "torch.trunc(leaf * (1 / self.grid))",
        "(leaf * (1 / self.grid))",
        "test_simulation.py::test_sums_are_exact_whatever_the_order_the_chunks_and_the_threads",
    ),
    "one bound for all doors that are asked at once": (
        "curators/simulated.py",
        "if len({(door._plan.bound, door._plan.grid, door._device) for door in doors}) > 1:",
        "if False:",
        "test_together.py::test_doors_with_bounds_of_their_own_are_refused",
    ),
    "a planted bug that looks at one user only": (
        "media/images/reading.py",
        'held.update(np.ascontiguousarray(population.columns["x"][piece]).data)',
        "held.update(str((len(population), piece[0])).encode())",
        "test_bad_images.py::test_one_user_who_leaves_does_not_change_whom_a_planted_bug_hits[0-users]",
    ),
    "the verdict that is asked for once": (
        "runs/preparation.py",
        "return AccuracyBetween(at_least=at_least, below=below)(population, name, side.accuracies)",
        "return AccuracyBetween(at_least=at_least, below=below)(population, name, accuracies(population, primary))",
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
    "the price of learnt thresholds": (
        "recipes/recipe.py",
        "beside = (count,) * models + ((self.threshold_plan,) if self.threshold_plan else ())",
        "beside = (count,) * models",
        "test_recipes.py::test_learnt_thresholds_are_paid_once_by_everybody_and_the_target_is_met",
    ),
    "the unit that is displaced": (
        "privacy/sampling.py",
        "return SampledGaussian(multiplier=multiplier / 2, rate=self.size / self.population)",
        "return SampledGaussian(multiplier=multiplier, rate=self.size / self.population)",
        "test_losses.py::test_one_release_covers_every_crowd_and_is_no_looser_than_it_must_be[2 of 5-add/remove]",
    ),
    "the cap that is met": (
        "privacy/losses.py",
        "return self._capped(plain, grid) if self.displacing else plain",
        "return plain",
        "test_accounting.py::test_a_cap_that_is_often_met_costs_something",
    ),
    "the budget": (
        "ledger/book.py",
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
        "return carried_out(plan, releases) if is_gaussian(plan) else plan",
        "return carried_out(plan, releases)",
        "test_filters.py::test_a_sampled_plan_that_was_begun_is_owed_whole_and_one_that_was_not_is_returned[sqlite]",
    ),
    "the promised price": (
        "runs/run.py",
        "joint=self.promised(),",
        "joint=self.recipe.guarantee([book.spending(account) for account in self._accounts()]),",
        "test_runs.py::test_the_price_in_the_report_does_not_tell_whether_a_group_was_too_small[100]",
    ),
    "the leave": (
        "ledger/book.py",
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


def run(source, *arguments):
    """Python with this copy of the package in front of the installed one."""
    surroundings = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=TESTS.parent, env=surroundings, capture_output=True, text=True, timeout=120
    )


def pytest_on(source, *names):
    chosen = [f"{TESTS}/{name}" for name in names]
    return run(source, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line", *chosen)


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "fedlens", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_copy_is_what_the_tests_would_run(copy):
    (copy / "fedlens" / "core" / "trees.py").write_text("WHOSE = 'the copy'")
    assert run(copy, "-c", "from fedlens.core import trees; print(trees.WHOSE)").stdout.strip() == "the copy"


def test_nothing_fails_while_nothing_is_taken_out(copy):
    done = pytest_on(copy, *dict.fromkeys(test for *_, test in MUTATIONS.values()))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("part", MUTATIONS)
def test_some_test_fails_without(copy, part):
    name, text, replacement, test = MUTATIONS[part]
    path = copy / "fedlens" / name
    assert path.read_text().count(text) == 1, f"Expected {text!r} once in {name}: name the new place of {part}."
    path.write_text(path.read_text().replace(text, replacement))
    done = pytest_on(copy, test)
    assert done.returncode == 1, done.stdout + done.stderr  # 1: tests failed; 2 and above: they did not run
    assert " failed" in done.stdout
    assert "error" not in done.stdout.splitlines()[-1]
