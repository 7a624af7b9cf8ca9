"""Every field of MuJoCo's model: compared under a symmetry, or known to be without effect."""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import mujoco
import numpy as np
import pytest
from planting import Plant, exact, fields, judge, plants, states_of
from refusals import refused

from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation._parameters import CONSTANTS, SHARED, SHORTCUTS

CARRIED = {
    "structure: it matches, or there is no symmetry": "body_parentid body_jntnum body_mocapid jnt_type jnt_bodyid "
    "tendon_type wrap_type wrap_objid actuator_trntype actuator_trnid actuator_dyntype actuator_gaintype "
    "actuator_biastype actuator_ctrlnum actuator_actnum actuator_outnum",
    "structure: what has no partner is a deviation": "geom_type geom_bodyid geom_dataid site_bodyid eq_type eq_objtype "
    "eq_obj1id eq_obj2id pair_geom1 pair_geom2 exclude_signature",
    "points of a body: M p, in the world R p + t": "body_pos body_ipos jnt_pos geom_pos site_pos",
    "orientations: M X, of a geom up to what leaves its shape alone": "body_quat geom_quat site_quat",
    "an axis: M a, of a hinge a pseudovector, with the joint's sign": "jnt_axis",
    "mass and the inertia tensor M I M^T, as far as some motion shows them": "body_mass body_inertia body_iquat",
    "angles and lengths: P q + delta, poses of free and ball joints": "qpos0 qpos_spring",
    "intervals, with the sign and the shifted zero of the joint, tendon or actuator": "jnt_range jnt_actfrcrange tendon_range "
    "tendon_actfrcrange tendon_lengthspring actuator_ctrlrange actuator_forcerange actuator_actrange "
    "actuator_lengthrange",
    "diagonal matrices: D K D^T": "dof_armature dof_damping dof_solref dof_solimp jnt_stiffness",
    "forces that are not linear, without images where elements mix": "dof_dampingpoly dof_frictionloss jnt_stiffnesspoly "
    "jnt_springyield tendon_stiffnesspoly actuator_dampingpoly",
    "lengths along axes, which may change places": "geom_size geom_fluid",
    "a velocity and an angular velocity: M v, det(M) M w": "geom_surfacevel",
    "surfaces: M x for every vertex or point of the grid": "mesh_vert mesh_vertadr mesh_vertnum mesh_graph "
    "mesh_graphadr hfield_data hfield_size hfield_nrow hfield_ncol hfield_adr",
    "paths, from either end: coefficients P c, side sites, divisors": "tendon_adr tendon_num wrap_prm",
    "forces, odd or even in an actuator's sign": "actuator_gear actuator_gainprm actuator_biasprm actuator_dynprm",
    "anchors, poses and polynomials of constraints": "eq_data",
    "configurations: equal text": "body_plugin geom_plugin actuator_plugin plugin plugin_attr plugin_attradr",
    "whether its bit is set in opt.disableactuator": "actuator_group opt.disableactuator",
    "of the bodies of a tree": "tree_sleep_policy body_treeid",
    "vectors of the world: R v": "opt.gravity opt.wind",
}
"""Fields with rules of their own, in `elements` and `parameters`."""

WITHOUT_EFFECT = {
    "of the whole model, whatever is where": "opt opt.* flg_* stat signature n*",
    "seen, not felt": "vis cam_* light_* tex_* mat_* skin_* *_rgba *_matid geom_group site_group tendon_group jnt_group "
    "geom_castshadow tendon_width site_type site_size site_dataid mesh_texcoord* mesh_normal* mesh_face*",
    "names, paths and what a user keeps": "name_* names names_map paths *_pathadr text_* numeric_* tuple_* *_user",
    "read from the state, without acting on it": "sensor_*",
    "states to start from; certify compares the states after a reset": "key_*",
    "models with flexes are refused": "flex* efm0_* efmC_*",
    "addresses and index tables of the compiler": "body_rootid body_weldid body_jntadr body_dofnum body_dofadr "
    "body_geomnum body_geomadr body_bvhadr body_bvhnum jnt_qposadr jnt_dofadr jnt_actuatorid jnt_plasticadr "
    "dof_bodyid dof_jntid dof_parentid dof_treeid dof_Madr dof_simplenum tree_bodyadr tree_bodynum tree_dofadr "
    "tree_dofnum tendon_plasticadr tendon_actuatorid tendon_treenum tendon_treeid ten_J_* actuator_ctrladr "
    "actuator_outadr actuator_actadr actuator_historyadr plugin_stateadr plugin_statenum pair_signature "
    "B_* M_* D_* mapM2M mapM2D mapD2M",
    "index tables and bounds inside a mesh or of a body's boxes, made by the compiler": "bvh_depth bvh_child bvh_nodeid oct_* "
    "mesh_bvh* mesh_oct* mesh_poly* mesh_extrema",
    "how a mesh was placed when it was compiled; vertices and geoms say where it is": "mesh_pos mesh_quat mesh_scale",
}
"""Fields that cannot spoil a symmetry, as names or patterns, by the reason why."""


LISTED = {
    field
    for table in (*SHARED.values(), CARRIED, CONSTANTS, SHORTCUTS)
    for names in table.values()
    for field in names.split()
}
PATTERNS = [name for names in WITHOUT_EFFECT.values() for name in names.split()]


def is_accounted_for(field: str) -> bool:
    """Check whether the role of a field, such as ``"jnt_axis"`` or ``"opt.gravity"``, under a symmetry is known."""
    return field in LISTED or any(fnmatchcase(field, pattern) for pattern in PATTERNS)


@pytest.fixture(scope="module")
def puppet():
    return exact("puppet")


@pytest.fixture(scope="module")
def states(puppet):
    return states_of(puppet[0])


def test_every_field_has_one_role(puppet):
    model, _ = puppet
    unknown = [field for field in fields(model) if not is_accounted_for(field)]
    assert not unknown, (
        f"say in derivation/_parameters.py how a symmetry carries {unknown}, or here why they cannot matter"
    )
    assert not is_accounted_for("jnt_colour")
    both = [field for field in LISTED if any(fnmatchcase(field, p) for p in PATTERNS)]
    assert all(field.startswith("opt.") for field in both)  # of which the others concern the whole model
    sizes = [field for field in fields(model) if field[0] == "n" and not field.startswith(("name", "numeric"))]
    assert all(isinstance(getattr(model, field), int) for field in sizes)


ONE_SIDED = {
    "pair_friction": (0, 0), "pair_solref": (0, 0), "pair_margin": (1, 0), "site_pos": (0, 2), "tendon_actfrclimited": (0, 0),
    "actuator_actearly": (0, 0), "eq_data": (3, 1), "eq_solref": (3, 0), "geom_surfacevel": (7, 1), "actuator_delay": (0, 0),
    "body_gravcomp": (3, 0), "dof_invweight0": (7, 0), "opt.wind": (1,), "geom_aabb": (6, 4), "geom_rbound": (6,),
    "geom_sameframe": (6,), "site_sameframe": (3,), "body_margin": (4,), "body_contype": (4,), "body_sameframe": (2,),
    "body_simple": (4,), "bvh_aabb": (4, 1),
}  # fmt: skip


def test_nothing_deviates_from_the_puppet_nor_on_slower_paths(puppet):
    model, symmetry = puppet
    slow = copy.copy(model)
    slow.geom_sameframe[:] = slow.site_sameframe[:] = 0  # flags of shortcuts
    assert not derive(model)[symmetry].deviations and not derive(slow)[symmetry].deviations


@pytest.mark.parametrize("field", ONE_SIDED)
def test_what_is_planted_on_one_side_is_named(puppet, states, field):
    model, symmetry = puppet
    index = ONE_SIDED[field][: 1 if field.startswith("opt.") else getattr(model, field).ndim]
    assert judge(Plant(field, index), model, symmetry, states) == "named"


def test_of_random_numbers_none_is_missed(puppet, states):
    """A sample of what `benchmarks/asymmetries.py` goes through."""
    model, symmetry = puppet
    rng = np.random.default_rng(7)
    numbers = [plant for plant in plants(model, 1, rng) if plant.into(model) is not None]
    chosen = [numbers[k] for k in rng.choice(len(numbers), 15, replace=False)]
    verdicts = {str(plant): judge(plant, model, symmetry, states) for plant in chosen}
    assert not [plant for plant, verdict in verdicts.items() if verdict in ("MISSED", "refused")]
    assert list(verdicts.values()).count("named") > 3


def test_a_number_that_nothing_compares_is_missed(puppet, states, monkeypatch):
    """What the sweep would say if a field were forgotten."""
    model, symmetry = puppet
    kept = SHARED["body"]["moving"].replace("body_gravcomp", "")
    monkeypatch.setitem(SHARED["body"], "moving", kept)
    assert judge(Plant("body_gravcomp", (3,)), model, symmetry, states) == "MISSED"


def test_bounds_that_are_off_alike_do_not_deviate(puppet):
    """Sizes that were changed by hand on both sides, without `mj_setConst`; on one side their bounds are named too."""
    model, symmetry = puppet
    thick = copy.copy(model)
    for side in "lr":
        thick.geom_size[thick.geom(f"shin_{side}").id] *= 1.1
        names = {d.parameter for d in derive(thick)[symmetry].deviations}
        assert names == ({"size", "rbound", "aabb"} if side == "l" else set())


def test_a_model_whose_constants_cannot_be_computed_is_refused(puppet, states):
    model, symmetry = puppet
    assert judge(Plant("body_simple", (3,)), model, symmetry, states) == "refused"
    ball = mujoco.MjModel.from_xml_string(BALL)
    assert ball.body_simple[1] and derive(ball).names
    ball.body_ipos[1] = [0.01, 0.02, 0]
    with refused("constants", "simple", "compile it again"):
        derive(ball)


BALL = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 1"><freejoint/><geom size=".1"/></body>
</worldbody></mujoco>"""
