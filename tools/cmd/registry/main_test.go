package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

const version = "v1.2.3"

// The image and the charts of a release install from a registry.
func TestAReleaseInstallsFromARegistry(t *testing.T) {
	t.Parallel()

	of := newDist(t, version)
	found, err := of.check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(found, "2 charts") || !strings.Contains(found, "linux/amd64, linux/arm64") {
		t.Errorf("found %q", found)
	}
}

// The chart names the image of its own version. Another one is not there.
func TestAChartWithAnotherImageIsFound(t *testing.T) {
	t.Parallel()

	of := newDist(t, "v1.2.4")
	of.version = version
	if _, err := of.check(t.Context()); err == nil || !strings.Contains(err.Error(), version) {
		t.Errorf("error %v", err)
	}
}

// newDist makes an image of a version, and the charts of [version].
func newDist(t *testing.T, image string) *dist {
	t.Helper()

	root, err := filepath.Abs("../../..")
	check(t, err)
	of := &dist{
		layout: t.TempDir(), charts: t.TempDir(), version: image,
		helm: filepath.Join(root, "bin", "tools", runtime.Version(), "helm"),
	}
	if _, err := os.Stat(of.helm); err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("needs helm, which make test builds")
		}
		t.Fatal(err)
	}

	for _, chart := range []string{"runtime-watcher-agent", "runtime-watcher-controlplane"} {
		pack := exec.CommandContext(context.WithoutCancel(t.Context()), of.helm, "package",
			filepath.Join(root, "deploy", "charts", chart), "--version", strings.TrimPrefix(version, "v"),
			"--app-version", version, "--destination", of.charts)
		if out, err := pack.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}

	index := v1.ImageIndex(empty.Index)
	for _, architecture := range []string{"amd64", "arm64"} {
		image, err := random.Image(100, 1)
		check(t, err)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}

	to, err := layout.Write(of.layout, empty.Index)
	check(t, err)
	check(t, to.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": image})))

	return of
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
