"""Every field of `mujoco.MjModel`: how a symmetry carries it, or why it cannot matter.

`SAME`, `CONSTANTS` and `SHORTCUTS` are what the comparison itself reads: adding a name there compares it. `CARRIED` names the
fields that have rules of their own, in `elements` and `parameters`. A test goes through the fields of the
installed MuJoCo.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

SAME = {
    "joint": {
        "always": "jnt_stiffness jnt_stiffnesspoly jnt_springyield jnt_limited jnt_actgravcomp jnt_actfrclimited",
        "limited": "jnt_margin jnt_solref jnt_solimp",
    },
    "body": {"moving": "body_gravcomp"},
    "geom": {
        "colliding": "geom_friction geom_condim geom_contype geom_conaffinity geom_priority geom_solmix geom_solref "
        "geom_solimp geom_margin geom_gap geom_adhesion",
    },
    "pair": {
        "always": "pair_dim pair_friction pair_solref pair_solreffriction pair_solimp pair_margin pair_gap pair_adhesion"
    },
    "tendon": {
        "always": "tendon_stiffness tendon_stiffnesspoly tendon_damping tendon_dampingpoly tendon_frictionloss "
        "tendon_armature tendon_springyield tendon_limited tendon_actfrclimited",
        "limited": "tendon_margin tendon_solref_lim tendon_solimp_lim",
        "lossy": "tendon_solref_fri tendon_solimp_fri",
    },
    "actuator": {
        "always": "actuator_dynprm actuator_cranklength actuator_armature actuator_damping actuator_dampingpoly "
        "actuator_delay actuator_history actuator_actearly actuator_ctrlspec actuator_forcelimited actuator_actlimited",
    },
    "control": {"always": "actuator_ctrllimited"},
    "equality": {"always": "eq_solref eq_solimp eq_active0"},
}
"""Numbers that partners share, by kind of element and when they count."""

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
    "intervals, with the sign of the joint, tendon or actuator": "jnt_range jnt_actfrcrange tendon_range "
    "tendon_actfrcrange tendon_lengthspring actuator_ctrlrange actuator_forcerange actuator_actrange "
    "actuator_lengthrange",
    "diagonal matrices: D K D^T": "dof_armature dof_damping dof_dampingpoly dof_frictionloss dof_solref dof_solimp",
    "lengths along axes, which may change places": "geom_size geom_fluid",
    "a velocity and an angular velocity: M v, det(M) M w": "geom_surfacevel",
    "surfaces: M x for every vertex or point of the grid": "mesh_vert mesh_vertadr mesh_vertnum mesh_graph "
    "mesh_graphadr hfield_data hfield_size hfield_nrow hfield_ncol hfield_adr",
    "paths, from either end: coefficients P c, side sites, divisors": "tendon_adr tendon_num wrap_prm",
    "forces, odd or even in an actuator's sign": "actuator_gear actuator_gainprm actuator_biasprm",
    "anchors, poses and polynomials of constraints": "eq_data",
    "configurations: equal text": "body_plugin geom_plugin actuator_plugin plugin plugin_attr plugin_attradr",
    "whether its bit is set in opt.disableactuator": "actuator_group opt.disableactuator",
    "of the bodies of a tree": "tree_sleep_policy body_treeid",
    "vectors of the world: R v": "opt.gravity opt.wind",
}
"""Fields with rules of their own."""

CONSTANTS = {
    "body": "body_subtreemass body_invweight0",
    "dof": "dof_invweight0 dof_M0 dof_length",
    "tendon": "tendon_length0 tendon_invweight0",
    "actuator": "actuator_acc0 actuator_length0",
}
"""Numbers that `mj_setConst` computes from others. They are compared where they are not what it computes."""

SHORTCUTS = {
    "body": "body_margin body_contype body_conaffinity body_sameframe body_simple bvh_aabb",
    "geom": "geom_aabb geom_rbound geom_sameframe",
    "site": "site_sameframe",
}
"""Bounds and flags that follow from the shapes. Wrong ones lose contacts or move a geom, so they deviate from any symmetry."""

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


def role_of(field: str) -> str | None:
    """Role of a field under a symmetry, such as ``"jnt_axis"`` or ``"opt.gravity"``; None if nothing is known of it."""
    for kind, conditions in SAME.items():
        for condition, names in conditions.items():
            if field in names.split():
                return f"the same for the partner ({kind}, {condition})"
    for role, names in CARRIED.items():
        if field in names.split():
            return role
    if any(field in names.split() for names in [*CONSTANTS.values(), *SHORTCUTS.values()]):
        return "computed from other fields"
    patterns = ((reason, name) for reason, names in WITHOUT_EFFECT.items() for name in names.split())
    return next((reason for reason, name in patterns if fnmatchcase(field, name)), None)
