package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestImageIsOneProgramWithoutRights(t *testing.T) {
	img, printed := makeImage(t, binary(t, "content"))
	if err := validate.Image(img); err != nil || !strings.Contains(printed, digest(t, img).String()) {
		t.Errorf("not a valid image, or printed %q without the digest %s: %v", printed, digest(t, img), err)
	}

	config := must(img.ConfigFile())
	if config.OS != "linux" || config.Architecture != "arm64" {
		t.Errorf("platform is %s/%s, want linux/arm64", config.OS, config.Architecture)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/agent"}) {
		t.Errorf("user is %q, entrypoint is %q", c.User, c.Entrypoint)
	}

	for label, want := range map[string]string{
		"version": "v1.2.3", "licenses": "Apache-2.0 AND BSD-3-Clause", "revision": "abc123",
	} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("%s is %q, want %q", label, got, want)
		}
	}

	got := files(t, img)
	if !strings.HasSuffix(got["agent"], "content") || !strings.Contains(got["licenses/stdlib/LICENSE"], "The Go Authors") {
		t.Errorf("no agent, or no license of the standard library in %v", slices.Collect(maps.Keys(got)))
	}

	for name := range got {
		if name != "agent" && !strings.HasPrefix(name, "licenses/") {
			t.Errorf("%s is neither the agent nor a license", name)
		}
	}

	if got := config.Created.Unix(); got != 1795319521 {
		t.Errorf("created at %d, want the time of the commit", got)
	}
	if got, err := img.MediaType(); err != nil || got != types.OCIManifestSchema1 {
		t.Errorf("media type is %s, %v", got, err)
	}
}

// The image for the Deployment of kyma-project/runtime-watcher has defaults that it does not set.
func TestImageHasVariables(t *testing.T) {
	img, _ := makeImage(t, binary(t, "content"), "-env-file", "../../deploy/dropin/agent.env")
	config := must(img.ConfigFile())
	want := []string{"MANAGERS=lifecycle-manager,*", "METRICS_ALIASES=true", "CONTRACT_FALLBACK=v2"}
	if !slices.Equal(config.Config.Env, want) {
		t.Errorf("variables are %q, want %q", config.Config.Env, want)
	}
}

func TestSameBinarySameDigest(t *testing.T) {
	file := binary(t, "content")
	first, _ := makeImage(t, file)
	later := time.Now().Add(time.Hour)
	check(t, os.Chtimes(file, later, later))
	second, _ := makeImage(t, file)
	other, _ := makeImage(t, binary(t, "other content"))
	if digest(t, first) != digest(t, second) {
		t.Errorf("the same binary gave %s and %s", digest(t, first), digest(t, second))
	}
	if digest(t, first) == digest(t, other) {
		t.Error("another binary gave the same digest")
	}
}

func TestWrongUse(t *testing.T) {
	file := binary(t, "content")
	text := filepath.Join(t.TempDir(), "agent")
	check(t, errors.Join(os.WriteFile(text, []byte("#!/bin/sh"), 0o700),
		os.WriteFile(text+".bad", []byte("=x"), 0o600)))
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no binary":      {[]string{"-out", t.TempDir()}, "usage: image -out"},
		"no output":      {[]string{"linux/arm64=" + file}, "usage: image -out"},
		"missing binary": {[]string{"-out", t.TempDir(), "linux/arm64=" + file + ".missing"}, "agent.missing: no such file"},
		"missing file":   {[]string{"-out", t.TempDir(), "-env-file", text + ".env", "linux/arm64=" + file}, "agent.env: no such file"},
		"no variables":   {[]string{"-out", t.TempDir(), "-env-file", text + ".bad", "linux/arm64=" + file}, "=x"},
		"platform":       {[]string{"-out", t.TempDir(), "a/b/c/d=" + file}, `platform "a/b/c/d"`},
		"no Go binary":   {[]string{"-out", t.TempDir(), "linux/arm64=" + text}, "agent"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), tt.args, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// binary returns the path of a small Go binary named agent, with content at its end.
func binary(t *testing.T, content string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "agent")
	check(t, os.WriteFile(file, append(bytes.Clone(must(program())), content...), 0o700))
	return file
}

// program compiles a program that does nothing, once.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	source := filepath.Join(dir, "main.go")
	built := filepath.Join(dir, "agent")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return nil, err
	}

	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", built, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}

	return os.ReadFile(built)
})

// TestSBOMHasAllModules reads that of this test. The sibling modules of an agent have its version.
func TestSBOMHasAllModules(t *testing.T) {
	self := must(os.Executable())
	info := must(buildinfo.ReadFile(self))
	info.Deps = slices.DeleteFunc(info.Deps, func(m *debug.Module) bool { return m.Path == digests })
	info.Deps = append(info.Deps, &debug.Module{Path: root + "x", Version: "v0.0.0", Replace: &debug.Module{Path: "../x"}})
	parts := must(partsOf(t.Context(), info))
	var doc document
	check(t, json.Unmarshal(must(sbom(info, self, "sha256:abc", release{version: "v1.2.3"}, parts)), &doc))
	found := map[string]string{}

	for _, p := range doc.Packages {
		found[p.Name] = p.Version
		if p.License == "" || p.License == noAssertion {
			t.Errorf("%s has no license", p.Name)
		}
	}

	for _, module := range info.Deps {
		if want := module.Version; found[module.Path] != want && found[module.Path] != "v1.2.3" {
			t.Errorf("%s is %q, want %s", module.Path, found[module.Path], want)
		}
	}

	if found[root+"x"] != "v1.2.3" || len(found) != len(info.Deps)+2 {
		t.Errorf("%d packages for %d modules, want the program and the standard library, too", len(found), len(info.Deps))
	}
}

// document has what the tests read of an SBOM.
type document struct {
	Creation struct{ Created string } `json:"creationInfo"`
	Packages []struct {
		Name    string `json:"name"`
		Version string `json:"versionInfo"`
		License string `json:"licenseDeclared"`
	} `json:"packages"`
	Relationships []json.RawMessage `json:"relationships"`
}

func TestLicenses(t *testing.T) {
	const isc = "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is " +
		"hereby granted, provided that the above copyright notice and this permission notice appear in all copies.\n\n" +
		"THE SOFTWARE IS PROVIDED \"AS IS\" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING " +
		"ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, " +
		"DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, " +
		"WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE " +
		"USE OR PERFORMANCE OF THIS SOFTWARE.\n"

	bsd := string(must(os.ReadFile(filepath.Join(must(goEnv(t.Context(), "GOROOT")), "LICENSE"))))
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"allowed":   {map[string]string{"LICENSE": isc}, "ISC"},
		"two files": {map[string]string{"LICENSE": bsd, "COPYING.txt": isc}, "BSD-3-Clause AND ISC"},
		"none":      {map[string]string{"README": isc}, ""},
		"unknown":   {map[string]string{"LICENSE": "Ask us."}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range test.files {
				check(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}

			p, err := newPart("x", "v1.0.0", dir)
			if (err == nil) != (test.want != "") || err == nil && p.license != test.want {
				t.Errorf("%q and %v, want %q", p.license, err, test.want)
			}
			if err == nil && len(notices([]part{p})) != len(test.files) {
				t.Errorf("notices are %v", notices([]part{p}))
			}
		})
	}

	if _, err := modulePart(t.Context(), digests, digestsVersion(t)); err == nil || !strings.Contains(err.Error(), "CC-BY-SA") {
		t.Errorf("%v, want a refusal of a license that is not allowed", err)
	}
}

// digests is a module of this test with documents under a license that no part of the agent may have.
const digests = "github.com/opencontainers/go-digest"

func digestsVersion(t *testing.T) string {
	t.Helper()

	for _, m := range must(buildinfo.ReadFile(must(os.Executable()))).Deps {
		if m.Path == digests {
			return m.Version
		}
	}

	t.Fatal(digests, "is not in this test")
	return ""
}

// makeImage runs the command, and returns the image for arm64 and the output.
func makeImage(t *testing.T, file string, more ...string) (v1.Image, string) {
	t.Helper()

	dir := filepath.Join(t.TempDir(), "image")
	var printed strings.Builder
	leftover := filepath.Join(dir, "blobs", "sha256", "of-another-image")
	check(t, errors.Join(os.MkdirAll(filepath.Dir(leftover), 0o700), os.WriteFile(leftover, nil, 0o600)))
	args := slices.Concat(more, []string{
		"-out", dir, "-archives", filepath.Join(dir, "..", "archives"), "-version", "v1.2.3", "-revision", "abc123",
		"-created", "1795319521", "linux/amd64=" + file, "linux/arm64=" + file,
	})
	check(t, run(t.Context(), args, &printed, io.Discard))

	if _, err := os.Stat(leftover); err == nil {
		t.Error("a blob of an earlier image is still there")
	}

	return checkLayout(t, dir), printed.String()
}

// checkLayout holds that a layout has an index of two images, an SBOM for each and an archive for each. It returns the
// image for arm64.
func checkLayout(t *testing.T, dir string) v1.Image {
	t.Helper()

	root := must(layout.ImageIndexFromPath(dir))
	all := must(root.IndexManifest()).Manifests
	if len(all) != 3 || all[0].MediaType != types.OCIImageIndex || all[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Fatalf("the layout has %+v, want an index with the version and two SBOMs", all)
	}

	index := must(root.ImageIndex(all[0].Digest))
	if err := validate.Index(index); err != nil {
		t.Errorf("not a valid index: %v", err)
	}

	images := must(index.IndexManifest()).Manifests
	for i, platform := range []string{"linux/amd64", "linux/arm64"} {
		if images[i].Platform.String() != platform {
			t.Errorf("image %d is for %s, want %s", i, images[i].Platform, platform)
		}

		checkSBOM(t, must(root.Image(all[i+1].Digest)), images[i].Digest)
		archive := filepath.Join(dir, "..", "archives", "agent-"+strings.ReplaceAll(platform, "/", "-")+".tar")
		loaded := must(tarball.ImageFromPath(archive, nil))
		if must(loaded.ConfigName()) != must(must(index.Image(images[i].Digest)).ConfigName()) {
			t.Errorf("%s has another image than the layout", archive)
		}
	}

	return must(index.Image(images[1].Digest))
}

func checkSBOM(t *testing.T, attached v1.Image, image v1.Hash) {
	t.Helper()

	manifest := must(attached.Manifest())
	if manifest.Subject == nil || manifest.Subject.Digest != image || manifest.Config.MediaType != spdx {
		t.Errorf("the SBOM is %+v, want it to refer to %s", manifest, image)
	}

	content := must(must(attached.Layers())[0].Uncompressed())
	defer content.Close()

	var doc document
	check(t, json.NewDecoder(content).Decode(&doc))
	names := map[string]string{}

	for _, p := range doc.Packages {
		names[p.Name] = p.Version
	}

	if names["stdlib"] != strings.TrimPrefix(runtime.Version(), "go") ||
		doc.Creation.Created != "2026-11-22T03:52:01Z" || len(doc.Relationships) != len(doc.Packages) {
		t.Errorf("the SBOM has %v of %s, want the modules of this test", names, doc.Creation.Created)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func digest(t *testing.T, img v1.Image) v1.Hash {
	t.Helper()
	return must(img.Digest())
}

func files(t *testing.T, img v1.Image) map[string]string {
	t.Helper()

	layers := must(img.Layers())
	found := map[string]string{}
	for _, layer := range layers {
		maps.Copy(found, filesOf(t, layer))
	}

	return found
}

func filesOf(t *testing.T, layer v1.Layer) map[string]string {
	t.Helper()

	content := must(layer.Uncompressed())
	defer content.Close()

	found := map[string]string{}
	r := tar.NewReader(content)

	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}

		check(t, err)
		body := must(io.ReadAll(r))
		found[header.Name] = string(body)
	}
}

// TestDockerfileBuildsAsMake compares the flags of both builds, and the properties of both images.
func TestDockerfileBuildsAsMake(t *testing.T) {
	docker := string(must(os.ReadFile("../../Dockerfile")))
	makefile := string(must(os.ReadFile("../../Makefile")))
	command := regexp.MustCompile(`GOWORK=off CGO_ENABLED=0 .* build (.*)-X main\.version=`)
	flags := func(text string) string {
		found := command.FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no build of the agent in %.200s", text)
		}
		return strings.ReplaceAll(found[1], `"`, "'")
	}
	if have, want := flags(docker), flags(makefile); have != want {
		t.Errorf("the Dockerfile builds with %q, make with %q", have, want)
	}

	for _, want := range []string{
		"USER " + nonRoot, source, `ENTRYPOINT ["/agent"]`, "FROM scratch", "/image -licenses -out /licenses", "=build /licenses /licenses",
	} {
		if !strings.Contains(docker, want) {
			t.Errorf("no %q in the Dockerfile", want)
		}
	}
}
