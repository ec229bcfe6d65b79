"""The columns that other tools read by name, with their units."""

import pyarrow as pa
import pytest

from cptune.store import schema

AXES = """tp cp pp vpp dp ulysses sharding strategy stages micro_batch recompute loss
    data_parallel kernel"""
PROMISED = {
    "trials": f"""candidate_key number attempt outcome reason {AXES}
        step_s step_p10_s step_p90_s tokens_per_s tokens_per_s_per_gpu mfu mfu_formula
        predicted_step_s predicted_peak_lo_bytes predicted_peak_bytes predicted_peak_hi_bytes
        model_version peak_allocated_bytes peak_reserved_bytes forward_peak_bytes
        backward_peak_bytes asked_bytes free_bytes short_bytes oom_kind
        tp_exposed_s cp_exposed_s dp_exposed_s pp_exposed_s cp_comm_s exposed_method imbalance
        proof_id convergence_fingerprint execution_fingerprint started_at finished_at""",
    "ranks": "candidate_key attempt rank node gpu_uuid",
    "edges": "candidate_key attempt a_rank b_rank axis bytes seconds bytes_per_s",
    "steps": "candidate_key attempt rank index seconds",
    "exposures": """candidate_key attempt rank axis layer whole_axis method
        communication_s exposed_s blocked_s bytes""",
    "recipes": f"candidate_key {AXES}",
}
SCHEMAS = {
    "trials": schema.TRIALS,
    "ranks": schema.RANKS,
    "edges": schema.EDGES,
    "steps": schema.STEPS,
    "exposures": schema.EXPOSURES,
    "recipes": schema.RECIPES,
}


@pytest.mark.parametrize("table", PROMISED)
def test_every_promised_column_is_there(table):
    assert [name for name in PROMISED[table].split() if name not in SCHEMAS[table].names] == []


@pytest.mark.parametrize("table", SCHEMAS)
def test_a_table_says_its_name_and_version(table):
    assert SCHEMAS[table].metadata == {
        b"cptune.table": table.encode(),
        b"cptune.schema_version": b"1",
    }


@pytest.mark.parametrize(
    ("table", "column", "unit"),
    [
        ("trials", "step_s", b"s"),
        ("trials", "cp_exposed_s", b"s"),
        ("trials", "tokens_per_s", b"tokens/s"),
        ("trials", "tokens_per_s_per_gpu", b"tokens/s"),
        ("trials", "peak_allocated_bytes", b"bytes"),
        ("edges", "bytes", b"bytes"),
        ("edges", "bytes_per_s", b"bytes/s"),
        ("steps", "seconds", b"s"),
    ],
)
def test_a_quantity_has_its_unit(table, column, unit):
    assert SCHEMAS[table].field(column).metadata == {b"unit": unit}


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_size_and_time_has_a_unit_and_nothing_else_has(table):
    quantities = {"bytes", "seconds"}
    for field in SCHEMAS[table]:
        measured = field.name in quantities or field.name.endswith(("_s", "_bytes", "_per_gpu"))
        assert bool(field.metadata) == measured, field.name


@pytest.mark.parametrize("table", SCHEMAS)
def test_bytes_are_whole_and_seconds_are_real(table):
    for field in SCHEMAS[table]:
        if field.name.endswith("_bytes") or field.name == "bytes":
            assert field.type == pa.int64(), field.name
        if field.name.endswith("_s") or field.name == "seconds":
            assert field.type == pa.float64(), field.name


def test_a_schema_without_metadata_is_foreign():
    assert schema.why_foreign(schema.STEPS.remove_metadata(), schema.STEPS) == (
        "cptune.table is None, wanted b'steps'"
    )
    assert schema.why_foreign(schema.STEPS, schema.STEPS) is None


def test_a_file_from_before_a_later_column_is_of_the_table():
    names = ("traced_step_s", "cp_blocked_s")
    older = schema.TRIALS
    for name in names:
        older = older.remove(older.names.index(name))

    assert schema.why_foreign(older, schema.TRIALS) is None


def test_a_file_without_a_first_column_or_with_one_of_its_own_is_foreign():
    lacking = schema.TRIALS.remove(schema.TRIALS.names.index("step_s"))
    other = schema.TRIALS.append(pa.field("speed", pa.float64()))
    at = schema.TRIALS.names.index("traced_step_s")
    retyped = schema.TRIALS.set(at, pa.field("traced_step_s", pa.int64()))

    for foreign in (lacking, other, retyped):
        said = schema.why_foreign(foreign, schema.TRIALS)
        assert said == "its columns are not those of the table"
