package charts

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
	"github.com/runtime-watcher/runtime-watcher/internal/testcache"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test"
	rig "github.com/runtime-watcher/runtime-watcher/test/lab"
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// The files of make dist. By default, the test makes an image for this machine and the charts.
var (
	distCharts  = flag.String("dist", "", "`folder` of make dist, which has the charts")
	distImage   = flag.String("image", "", "`folder` with the OCI layout of the image")
	distVersion = flag.String("version", "", "`version` of these files")
)

// release is the part of a release that installs from a registry.
type release struct {
	charts, image, version string
}

func newRelease(t *testing.T) release {
	t.Helper()
	if *distCharts != "" {
		return release{*distCharts, *distImage, *distVersion}
	}
	of := release{t.TempDir(), filepath.Join(t.TempDir(), "image"), "v0.0.0-installed"}
	test.NoticeSources(t)
	rig.NoError(t, testcache.NoticeSources(filepath.Join(test.Root(), "tools", "image"), filepath.Join(test.Root(), "tools", "cmd", "registry")))
	binary := filepath.Join(t.TempDir(), "agent")
	_, err := machine.Go(t.Context(), filepath.Join(test.Root(), "cmd", "agent"), []string{"CGO_ENABLED=0"},
		"build", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+of.version, "-o", binary, ".")
	rig.NoError(t, err)
	rig.NoError(t, run(t, rig.Build(t, "tools/image"), "-version", of.version, "-out", of.image,
		goruntime.GOOS+"/"+goruntime.GOARCH+"="+binary))
	for _, chart := range []string{agent, controlPlane} {
		out, err := rig.Helm(t, "package", chart, "--version", strings.TrimPrefix(of.version, "v"), "--app-version", of.version,
			"--destination", of.charts)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return of
}

func run(t *testing.T, program string, args ...string) error {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = test.Root()
	out, err := command.CombinedOutput()
	if err != nil {
		t.Logf("%s: %s", program, out)
	}
	return err
}

// serve pushes the release to a registry on this machine, and returns its address.
func (of release) serve(t *testing.T) (host string) {
	t.Helper()
	helm := filepath.Join(test.Root(), "bin", "tools", goruntime.Version(), "helm")
	home := t.TempDir()
	registry := rig.NewProcess(t, "registry", rig.Build(t, "tools/cmd/registry"),
		[]string{"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, "HOME=" + home},
		"-serve", "-helm", helm, "-charts", of.charts, "-image", of.image, "-version", of.version)
	registry.Launch()
	address := regexp.MustCompile(`(?m)^127[.]0[.]0[.]1:\d+$`)
	rig.Eventually(t, rig.Patience, "the registry has the release", func() bool {
		host = address.FindString(registry.FullLog())
		return host != "" || !registry.Running()
	})
	if host == "" {
		t.Fatal("the registry has ended")
	}
	return host
}

// TestAReleaseIsInstalled installs the chart of a release from a registry, as users do.
// The node pulls the image that the chart names from there. A change arrives, and the control plane
// gets its definitions in the same way.
func TestAReleaseIsInstalled(t *testing.T) {
	rig.SkipShort(t)
	of := newRelease(t)
	host := of.serve(t)
	pki := rig.NewPKI(t)
	j := newJoined(t, pki, map[string]string{host + "/agent:" + of.version: pull(t, host, "agent", of.version)},
		func(plane string) map[string]string { return map[string]string{agentHost + ":443": plane} })
	j.addSecret("runtime-watcher-tls", testpki.Files(rig.Must(rig.RuntimeLeaf(pki.CA, string(joins), rig.RuntimeDomain(joins))), pki.CA))
	from := []string{"--plain-http", "--version", strings.TrimPrefix(of.version, "v")}
	chart := "oci://" + host + "/charts/"

	j.helm(slices.Concat([]string{"install", "agent", chart + "runtime-watcher-agent"}, from, []string{
		"--set", "image.repository=" + host + "/agent,tls.serving.generate=true", "--set", joiningSettings,
		"--set-json", joiningWatchers("configmaps"),
	})...)
	j.reaches("first")
	j.is(fleet.Fresh)
	for _, replica := range j.fleet.Get(joins, joiner).Replicas {
		rig.Same(t, "version of the agent", of.version, replica.Heartbeat.Version)
	}
	j.helm(slices.Concat([]string{"upgrade", "agent", chart + "runtime-watcher-agent", "--reuse-values", "--set", "replicas=1"}, from)...)
	j.reaches("upgraded")

	j.helm(slices.Concat([]string{"install", "watcher", chart + "runtime-watcher-controlplane"}, from)...)
	rig.Kubectl(t, "--kubeconfig", j.runtime.Kubeconfig, "get", "watchers.operator.kyma-project.io", "--all-namespaces")
	j.helm("uninstall", "watcher")
	j.leaves()
}

// pull returns the program of an image for this machine, as a container engine reads it: by the
// distribution API over plain HTTP, with each digest verified.
func pull(t *testing.T, host, repository, tag string) (program string) {
	t.Helper()
	client := &http.Client{Timeout: rig.Patience}
	read := func(kind, reference string) []byte {
		request := rig.Must(http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://"+host+"/v2/"+repository+"/"+kind+"/"+reference, http.NoBody))
		request.Header.Set("Accept", "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "+
			"application/vnd.docker.distribution.manifest.v2+json")
		answer := rig.Must(client.Do(request))
		defer answer.Body.Close()
		text := rig.Must(io.ReadAll(answer.Body))
		sum := sha256.Sum256(text)
		if digest := "sha256:" + hex.EncodeToString(sum[:]); answer.StatusCode != http.StatusOK || reference != tag && reference != digest {
			t.Fatalf("%s %s of %s: %s, digest %s", kind, reference, repository, answer.Status, digest)
		}
		return text
	}
	type descriptor struct {
		Digest   string `json:"digest"`
		Platform struct {
			OS           string `json:"os"`
			Architecture string `json:"architecture"`
		} `json:"platform"`
	}
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	rig.NoError(t, json.Unmarshal(read("manifests", tag), &index))
	at := slices.IndexFunc(index.Manifests, func(d descriptor) bool {
		return d.Platform.OS == goruntime.GOOS && d.Platform.Architecture == goruntime.GOARCH
	})
	if at < 0 {
		t.Fatalf("the index has no image for this machine: %+v", index)
	}
	var image struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	rig.NoError(t, json.Unmarshal(read("manifests", index.Manifests[at].Digest), &image))
	var config struct {
		Config struct {
			Entrypoint []string `json:"Entrypoint"`
			Cmd        []string `json:"Cmd"`
		} `json:"config"`
	}
	rig.NoError(t, json.Unmarshal(read("blobs", image.Config.Digest), &config))
	command := slices.Concat(config.Config.Entrypoint, config.Config.Cmd)
	if len(command) != 1 {
		t.Fatalf("the image runs %q, want a program", command)
	}

	program = filepath.Join(t.TempDir(), "program")
	for _, layer := range image.Layers {
		files := tar.NewReader(rig.Must(gzip.NewReader(bytes.NewReader(read("blobs", layer.Digest)))))
		for {
			file, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			rig.NoError(t, err)
			if strings.TrimPrefix(file.Name, "/") == strings.TrimPrefix(command[0], "/") {
				rig.NoError(t, os.WriteFile(program, rig.Must(io.ReadAll(files)), os.FileMode(cmp.Or(file.Mode, 0o755)).Perm()))
			}
		}
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("no layer has %s", command[0])
	}
	return program
}
