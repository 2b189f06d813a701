package main

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestImageIsOneFileRunByNobody(t *testing.T) {
	img, _ := makeImage(t, binary(t, "content"))

	if err := validate.Image(img); err != nil {
		t.Errorf("not a valid image: %v", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" {
		t.Errorf("platform is %s/%s, want linux/arm64", config.OS, config.Architecture)
	}
	if got := config.Config.User; got != "65532:65532" {
		t.Errorf("user is %q", got)
	}
	if got := config.Config.Entrypoint; len(got) != 1 || got[0] != "/agent" {
		t.Errorf("entrypoint is %q", got)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != "v1.2.3" {
		t.Errorf("version is %q", got)
	}
	if got := files(t, img); len(got) != 1 || got["agent"] != "content" {
		t.Errorf("files are %q, want the agent alone", got)
	}
	if got, err := img.MediaType(); err != nil || got != types.OCIManifestSchema1 {
		t.Errorf("media type is %s, %v", got, err)
	}
}

func TestSameBinarySameDigest(t *testing.T) {
	file := binary(t, "content")
	first, _ := makeImage(t, file)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	second, _ := makeImage(t, file)
	other, _ := makeImage(t, binary(t, "other content"))

	if digest(t, first) != digest(t, second) {
		t.Errorf("the same binary gave %s and %s", digest(t, first), digest(t, second))
	}
	if digest(t, first) == digest(t, other) {
		t.Error("another binary gave the same digest")
	}
}

func TestReportNamesTheDigest(t *testing.T) {
	img, printed := makeImage(t, binary(t, "content"))
	if !strings.Contains(printed, digest(t, img).String()) {
		t.Errorf("printed %q without the digest %s", printed, digest(t, img))
	}
}

func TestWrongUse(t *testing.T) {
	file := binary(t, "content")
	tests := map[string][]string{
		"no binary":      {"-out", t.TempDir()},
		"no output":      {file},
		"missing binary": {"-out", t.TempDir(), file + ".missing"},
		"platform":       {"-out", t.TempDir(), "-platform", "a/b/c/d", file},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			if err := run(args, io.Discard, io.Discard); err == nil {
				t.Error("no error")
			}
		})
	}
}

// binary returns the path of a file named agent.
func binary(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(file, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// makeImage runs the command twice into one directory, and returns the only image in it and what was printed.
func makeImage(t *testing.T, file string) (v1.Image, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	var printed strings.Builder
	for range 2 {
		printed.Reset()
		args := []string{"-out", dir, "-platform", "linux/arm64", "-version", "v1.2.3", file}
		if err := run(args, &printed, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%d images in the layout, want 1", len(manifest.Manifests))
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return img, printed.String()
}

func digest(t *testing.T, img v1.Image) v1.Hash {
	t.Helper()
	hash, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

func files(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, layer := range layers {
		maps.Copy(found, filesOf(t, layer))
	}
	return found
}

func filesOf(t *testing.T, layer v1.Layer) map[string]string {
	t.Helper()
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()

	found := map[string]string{}
	r := tar.NewReader(content)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = string(body)
	}
}
