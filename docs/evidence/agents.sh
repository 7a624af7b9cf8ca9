#!/usr/bin/env bash
# The agents of sections 10, 26, 29 to 32, 34, 37, 38, 40, 42 to 47 and 49 of protocol.md: bash docs/evidence/agents.sh RUNS SECTION...
#
# Each arm is a folder RUNS/SECTION/ARM with a folder for each seed. Arms that are finished are passed over, and one that was
# stopped goes on. Afterwards: approximate.py (10), learned_models.py (26) and returns.py (29 to 34) read the seeds' folders.
set -uo pipefail
runs=${1:?the folder for the runs}
shift
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1

go() { # SECTION/ARM, then the words of the command
    local folder="$runs/$1"
    shift
    [ -e "$folder/done" ] && return
    rppdyn train-agent --resume threads=1 device=cpu agent.compile=true "$@" run_dir="$folder" && touch "$folder/done"
}

swimmer() { # SECTION, first seed, seeds, current: the arms of CurrentSwimmer
    local at="env=rppdyn/CurrentSwimmer-v0 env.kwargs.current=$4 model.hidden=64 total_steps=30000 evaluation.every=5000
        evaluation.episodes=5 checkpoint_every=5000 seed=$2 seeds=$3"
    go "$1/swimmer-strict" $at model=emlp
    go "$1/swimmer-plain" $at model=mlp
    go "$1/swimmer-learned" $at model=rpp model.free_variance=learned
}

reacher() { # SECTION, first seed, tilt: the arms of TiltedReacher
    local at="env=rppdyn/TiltedReacher-v0 env.kwargs.tilt=$3 model.hidden=64 total_steps=10000 evaluation.every=1000
        evaluation.episodes=10 checkpoint_every=5000 seed=$2 seeds=10"
    go "$1/reacher-strict-$3" $at model=emlp
    go "$1/reacher-plain-$3" $at model=mlp
    go "$1/reacher-learned-$3" $at model=rpp model.free_variance=learned
    go "$1/reacher-control-$3" $at model=rpp model.free_variance=1e5
}

large() { # navigation, swarm or ant, SECTION/PREFIX, ARM, then further words: one arm of a task with a large group
    local task=$1 to="$2-$3" arm=$3 width learned="model=rpp model.free_variance=learned"
    local at="agent.gamma=0.95 evaluation.episodes=10" early="agent.learning_starts=200 model.learn_every=1000"
    shift 3
    case $task in
        navigation) at="$at $early env=rppdyn/Navigation-v0 model.hidden=64 total_steps=6000 evaluation.every=500 checkpoint_every=2000" ;;
        swarm) at="$at $early env=rppdyn/Swarm-v0 model.hidden=128 total_steps=10000 evaluation.every=1000 checkpoint_every=2500" ;;
        ant) at="$at env=rppdyn/HeadingAnt-v0 model.hidden=64 total_steps=12000 evaluation.every=1000 checkpoint_every=4000
            agent.learning_starts=1000 model.learn_every=2000" ;;
    esac
    case $task,$arm in *,wrong | *,plain-learned) ;; navigation,*) at="$at env.symmetry=D8" ;; esac
    case $arm in
        strict) go "$to" $at model=emlp "$@" ;;
        larger) # as many parameters as plain
            case $task in ant) width=216 ;; *) width=272 ;; esac
            go "$to" $at model=emlp model.hidden=$width "$@"
            ;;
        subgroup) go "$to" $at model=emlp 'env.symmetry="D(4)"' "$@" ;; # what a fault leaves of the swarm's group
        breaking) go "$to" $at model=emlp model.breaking=V "$@" ;;
        plain) go "$to" $at model=mlp "$@" ;;
        plain-learned) go "$to" $at $learned env.spec="$here/data/${task}_identity.json" "$@" ;;
        wrong) go "$to" $at $learned env.spec="$here/data/${task}_wrong.json" "$@" ;;
        control) go "$to" $at model=rpp model.free_variance=1e5 "$@" ;;
        learned) go "$to" $at $learned "$@" ;;
        chain) go "$to" $at $learned 'model.groups=["S(4) x D(4)","quarter turn+left-right"]' 'model.variances=[1e5,1e-4,1e-7]' "$@" ;;
        certified) go "$to" $at model=rpp model.free_variance=certified "$@" ;;
        widens) go "$to" $at model=rpp model.free_variance=certified model.widen=4000 "$@" ;;
    esac
}
grid() { # navigation, swarm or ant, SECTION, the number that breaks it, its values, arms, then further words
    local task=$1 section=$2 number=$3 strength arm rate
    for strength in $4; do
        for arm in $5; do
            case $strength,$arm in 0,certified | 0,widens) continue ;; esac # it is strict there
            case $task,$arm in navigation,strict | swarm,plain | ant,plain) rate=1e-3 ;; *) rate=3e-3 ;; esac
            large "$task" "$section/$strength" "$arm" "env.kwargs.$number=$strength" "agent.learning_rate=$rate" "${@:6}"
        done
    done
}
rates() { # navigation, swarm or ant, SECTION, arms, then further words: each arm at both rates
    local arm rate
    for arm in $3; do
        for rate in 1e-3 3e-3; do large "$1" "$2-rates/$rate" "$arm" "agent.learning_rate=$rate" "${@:4}"; done
    done
}
crossq() { # robot, its words, seeds, arms: those of sections 37 and 38, which share plain agents and so a folder
    local seed arm at
    for arm in $4; do
        for seed in $3; do
            at="agent=crossq agent.learning_starts=100 $2 total_steps=100000 evaluation.every=5000 evaluation.episodes=5 checkpoint_every=5000 seed=$seed"
            case $arm in
                plain) at="$at model=mlp" ;;
                narrower) at="$at model=mlp model.hidden=64" ;;
                strict) at="$at model=emlp" ;;
                replay) at="$at model=mlp agent.augment=true" ;;
                learned) at="$at model=rpp model.free_variance=learned model.learn_every=5000" ;;
                certified) at="$at model=rpp model.free_variance=certified" ;;
                control) at="$at model=rpp model.free_variance=1e5" ;;
            esac
            go "37/$1-$arm/seed$seed" $at
        done
    done
}

navigation_arms="strict plain learned control breaking wrong plain-learned certified widens"
swarm_arms="chain strict learned plain control subgroup breaking wrong certified"
ant_arms="strict learned plain breaking control wrong certified"

small="model.hidden=64 agent.learning_rate=1e-3 agent.batch_size=128 agent.learning_starts=1000 agent.betas=[0.9,0.999] evaluation.episodes=5"
pendulum="env=rppdyn/WindyPendulum-v0 env.symmetry=D4 $small"
certified="model=rpp model.free_variance=certified"

for section in "$@"; do
    case $section in
        10)
            words="$pendulum total_steps=21000 evaluation.every=1500 checkpoint_every=3000 seed=1100 seeds=10"
            for wind in 0 0.03 0.01 0.02; do
                at="$words env.kwargs.wind=$wind"
                go "10/strict-$wind" $at model=emlp
                go "10/plain-$wind" $at model=mlp
                go "10/certified-$wind" $at $certified
                go "10/widens-$wind" $at $certified model.widen=9000
                go "10/learned-$wind" $at model=rpp model.free_variance=learned
                go "10/replay-$wind" $at model=mlp agent.augment=true
                go "10/mirror-loss-$wind" $at model=mlp agent.mirror_loss=4
                go "10/narrow-$wind" $at model=rpp model.free_variance=1e-7
                go "10/control-$wind" $at model=rpp model.free_variance=1e5
                go "10/breaking-$wind" $at model=emlp model.breaking=V
            done
            ;;
        26) # version 0.1.0 (commit 17d2540) has agent=mbpo
            words="agent=mbpo $pendulum env.kwargs.wind=0.03 $certified total_steps=7500 evaluation.every=500 checkpoint_every=1000 seeds=10
                agent.gradient_steps=2 agent.imagination.members=3 agent.imagination.hidden=64 agent.imagination.every=500 agent.imagination.rollouts=4000"
            for design in "0.5 seed=1420" "0.05 seed=1400"; do
                at="$words agent.imagination.real_ratio=$design"
                go "26/${design%% *}-strict" $at agent.imagination.kind=emlp
                go "26/${design%% *}-relaxed" $at agent.imagination.kind=rpp agent.imagination.free_variance=0.0036
                go "26/${design%% *}-plain" $at agent.imagination.kind=mlp
            done
            ;;
        29)
            words="model.hidden=64 total_steps=50000 evaluation.every=5000 evaluation.episodes=5 checkpoint_every=10000 seed=1800 seeds=15"
            for robot in Swimmer Walker2d; do
                go "29/$robot-relaxed" env=$robot-v5 $words model=rpp
                go "29/$robot-plain" env=$robot-v5 $words model=mlp
                go "29/$robot-strict" env=$robot-v5 $words model=emlp
                go "29/$robot-replay" env=$robot-v5 $words model=mlp agent.augment=true
            done
            ;;
        30)
            words="env=Walker2d-v5 env.actuator_scale.thigh_joint=0.5 model.hidden=64 total_steps=300000 evaluation.every=10000 evaluation.episodes=5
                checkpoint_every=10000 seed=1900 seeds=10"
            go 30/plain $words model=mlp
            go 30/strict $words model=emlp
            go 30/learned $words model=rpp model.free_variance=learned
            ;;
        30-gpu) # ten seeds of 64 environments each, on a GPU
            words="env=Walker2d-v5 env.actuator_scale.thigh_joint=0.5 model.hidden=64 total_steps=300000 evaluation.every=25000 evaluation.episodes=5
                checkpoint_every=100000 seed=1910 seeds=10 device=cuda workers=true agent.num_envs=64 agent.gradient_steps=-1"
            go 30-gpu/plain $words model=mlp
            go 30-gpu/strict $words model=emlp
            go 30-gpu/learned $words model=rpp model.free_variance=learned
            ;;
        31)
            reacher 31 2000 0.3
            reacher 31 2000 0
            swimmer 31 2000 5 0.3
            ;;
        32) swimmer 32 2010 20 0.3 ;;
        34)
            reacher 34 2040 0.7
            swimmer 34 2040 10 1
            ;;
        37) # one seed of every robot before the next; several of these at once share the runs, since one under way is refused
            for seed in 2200 2201 2202 2203 2204; do
                for robot in Hopper Walker2d Ant HalfCheetah; do crossq $robot "env=$robot-v5" $seed plain; done
            done
            ;;
        37-reasons)
            for seed in 2290 2291 2210 2211 2212 2213 2214; do
                for robot in HalfCheetah Hopper; do crossq $robot-starts "env=$robot-v5 agent.learning_starts=5000" $seed plain; done
            done
            crossq HalfCheetah-wide "env=HalfCheetah-v5 agent.learning_starts=5000 model.critic_hidden=512" 2290 plain
            crossq Ant-linear "env=Ant-v5" 2290 learned # with 242121c, as in section 38
            ;;
        38) # plain agents of the first five seeds are section 37's; five seeds of the first two cells come before the others
            ant="env=Ant-v5" walker="env=Walker2d-v5"
            leg="$ant env.actuator_scale.hip_4=0.5 env.actuator_scale.ankle_4=0.5"
            early="2200 2201 2202 2203 2204" late="2205 2206 2207 2208 2209"
            six="plain strict learned control replay narrower" five="plain strict learned certified control"
            crossq Ant "$ant" "$early" "$six"
            crossq Ant-leg "$leg" "$early" "$five"
            crossq Ant "$ant" "$late" "$six"
            crossq Ant-leg "$leg" "$late" "$five"
            crossq Walker2d "$walker" "$early $late" "$six"
            ;;
        40-rates) rates navigation 40 "$navigation_arms larger" env.kwargs.hill=0.5 seed=2480 seeds=3 ;;
        40)
            for arms in "$navigation_arms" larger; do grid navigation 40 hill "2 0 0.5" "$arms" seed=2500 seeds=20; done
            ;;
        42)
            for wind in 0 0.03; do
                go "42/$wind-learned" $pendulum env.kwargs.wind=$wind model=rpp model.free_variance=learned total_steps=21000 evaluation.every=1500 \
                    checkpoint_every=6000 seed=2540 seeds=5
            done
            ;;
        43-rates) rates swarm 43 "strict plain learned" env.kwargs.fault=0.5 seed=2580 seeds=2 ;;
        43) grid swarm 43 fault "2 0 0.5" "$swarm_arms" seed=2600 seeds=10 ;;
        44-rates) rates ant 44 "strict plain learned" env.kwargs.payload=1 seed=2390 seeds=3 ;;
        44) grid ant 44 payload "2 0 0.25" "$ant_arms" seed=2630 seeds=10 ;;
        45-rates) rates navigation 45 "breaking plain learned" env.kwargs.hill=0.5 seed=2680 seeds=3 agent=crossq ;;
        45) grid navigation 45 hill "2 0 0.5" "learned widens breaking plain" seed=2640 seeds=10 agent=crossq ;;
        46) grid swarm 46 fault "2 0" "chain strict learned breaking" seed=2660 seeds=10 total_steps=20000 ;;
        47)
            grid ant 47/ant payload "0 2" learned seed=2630 seeds=10
            for wind in 0.03 0; do
                go "47/pendulum/$wind-learned" $pendulum env.kwargs.wind=$wind model=rpp model.free_variance=learned total_steps=21000 \
                    evaluation.every=1500 checkpoint_every=6000 seed=1100 seeds=10
            done
            grid navigation 47/navigation hill "2 0" learned seed=2500 seeds=20
            grid swarm 47/swarm fault "2 0" learned seed=2600 seeds=10
            grid ant 47/ant payload 0.25 learned seed=2630 seeds=10
            ;;
        49)
            grid ant 49 payload "2 0 0.25" "larger widens plain-learned" seed=2630 seeds=10
            grid swarm 49/swarm fault "2 0 0.5" "widens plain-learned" seed=2600 seeds=10
            ;;
        *) echo "$section: no such section; 10, 26, 29, 30, 30-gpu, 31, 32, 34, 37, 38, 40-rates, 40, 42, 43-rates, 43, 44-rates, 44, 45-rates, 45, 46, 47 or 49" >&2 && exit 2 ;;
    esac
done
