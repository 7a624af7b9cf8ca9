#!/bin/sh
# For a repository's CI: at each commit hold its mirror function beside the contract of every policy that it keeps.
#
#     sh check_mirror.sh my_robot.mdp:mirror [--actions my_robot.mdp:mirror_actions] [--model robot.xml]
#
# Exit status: 0 every entry of every contract is right, 1 some are wrong, 2 something can't be read, or there is no contract.
set -u
contracts=$(git ls-files ':(glob)**/symmetry.json')
[ -n "$contracts" ] || { echo "check_mirror: git knows no symmetry.json here; add those that rppdyn export wrote" >&2; exit 2; }
worst=0
while IFS= read -r contract; do
    echo "== $contract"
    rppdyn audit "$@" --observation "$contract"
    status=$?
    [ "$status" -le "$worst" ] || worst=$status
done <<END
$contracts
END
exit "$worst"
