#!/bin/sh
# Checks the files of a release in bin/dist as a user does: checksums, the image, the agent in it, charts and manifests.
# VERSION is that of the release, SHA256, HELM and KUBECTL are the programs.
set -eu

cd bin/dist
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() { echo "dist: $*" >&2; exit 1; }

$SHA256 -c checksums.txt >/dev/null || fail 'a checksum is wrong'
for f in *; do
    [ "$f" = checksums.txt ] || grep -q " $f\$" checksums.txt || fail "$f has no checksum"
done
echo "ok    $(wc -l <checksums.txt) checksums"

# The layout: each blob has the digest that it is called by, and the index has the version.
tar -C "$scratch" -xzf "image-$VERSION.oci.tar.gz"
(
    cd "$scratch/image"
    grep -q "\"org.opencontainers.image.ref.name\": *\"$VERSION\"" index.json || fail "the index of the image has no $VERSION"
    for blob in blobs/sha256/*; do
        [ "$($SHA256 "$blob" | cut -d ' ' -f 1)" = "$(basename "$blob")" ] || fail "$blob has another digest"
    done
    echo "ok    image with $(ls blobs/sha256 | wc -l) blobs"
)

# The archives for docker load: the agent for this machine starts.
started=
for archive in agent-*.tar; do
    root=$scratch/${archive%.tar}
    mkdir -p "$root/layers" "$root/fs"
    tar -C "$root/layers" -xf "$archive"
    for layer in "$root"/layers/*.tar.gz; do tar -C "$root/fs" -xzf "$layer"; done
    ls "$root"/fs/licenses/stdlib/LICENSE >/dev/null || fail "$archive has no licenses"
    case "$archive" in "agent-$(uname -s | tr A-Z a-z)-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/').tar")
        said=$("$root/fs/agent" -version)
        case "$said" in *"$VERSION"*) started="ok    agent starts: $said" ;; *) fail "agent -version prints $said" ;; esac
    esac
done
echo "${started:-skip  no image is for this machine: no agent was started}"

# Whoever installs a chart sets these two values.
"$HELM" template agent runtime-watcher-agent-*.tgz --set controlPlane.address=kcp.example.com:443 >"$scratch/agent.yaml"
"$HELM" template controlplane runtime-watcher-controlplane-*.tgz >"$scratch/controlplane.yaml"
grep -q "image: .*:$VERSION" "$scratch/agent.yaml" || fail 'the chart of the agent has another image'
echo "ok    charts: $(cat "$scratch"/*.yaml | grep -c '^kind:') objects"

tar -C "$scratch" -xzf "manifests-$VERSION.tar.gz"
"$KUBECTL" kustomize "$scratch/manifests" >"$scratch/manifests.yaml"
echo "ok    manifests: $(grep -c '^kind:' "$scratch/manifests.yaml") objects"
