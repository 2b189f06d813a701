#!/bin/sh
# Prints the absolute path of the folder with kube-apiserver and etcd, and with -kubectl also kubectl. That is
# KUBEBUILDER_ASSETS, else what was built before, else what setup-envtest downloads and compares with its checksum, else
# what is built from source in about six minutes of two cores, and one more for kubectl. SETUP_ENVTEST is the program, which make builds. ENVTEST_VERSION asks for that version, and none is built
# instead. Progress goes to standard error.
set -eu

# The index has the checksums. It is that of one commit, so that a later change of it is a change here.
index=https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/434758187dddcaf646276fbe2c2ba40ff4e859d5/envtest-releases.yaml
bound=$(command -v timeout || command -v gtimeout || true) # macOS has neither.

wanted=${ENVTEST_VERSION:-}
ENVTEST_VERSION=${wanted:-1.36.0}
if [ -z "${KUBEBUILDER_ASSETS:-}" ] && ! ls bin/controlplane/*/kube-apiserver >/dev/null 2>&1; then
    echo "assets: downloading Kubernetes $ENVTEST_VERSION for tests" >&2
    if make -s "$SETUP_ENVTEST" >&2 && KUBEBUILDER_ASSETS=$(${bound:+"$bound" 90} "$SETUP_ENVTEST" use "$ENVTEST_VERSION" --bin-dir "$PWD/bin/envtest" --index "$index" -p path 2>/dev/null); then
        echo "$KUBEBUILDER_ASSETS"
        exit
    fi
    [ -z "$wanted" ] || { echo "assets: no download of Kubernetes $wanted" >&2; exit 1; }
    echo 'assets: no download, building from source: about six minutes on two cores' >&2
    unset KUBEBUILDER_ASSETS
fi
exec "${GO:-go}" run ./test/lab/cmd/assets "$@"
