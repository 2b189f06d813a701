// Command registry checks that the files of a release install from a registry. Run it with make
// dist-check. It serves a registry on this machine, and pushes the image and the charts of bin/dist
// to it as a release does. The chart that is rendered from there must name an image that the
// registry has, for each platform. A second registry mirrors the first one, as
// docs/platforms/airgapped.md does, and the chart is rendered from there while the first one is
// gone. With -serve, it prints the address of the registry, and serves it until an interrupt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

func main() { os.Exit(command.Run("registry", run)) }

// dist contains the paths of the files of a release.
type dist struct {
	layout, charts string // folders
	version, helm  string
	// serving is the writer for the address of the registry. It is nil without -serve.
	serving io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("registry", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var of dist
	flags.StringVar(&of.layout, "image", "", "`folder` with the OCI layout of the image")
	flags.StringVar(&of.charts, "charts", "", "`folder` with the packed charts")
	flags.StringVar(&of.version, "version", "", "`version` of the release, such as v0.1.0")
	flags.StringVar(&of.helm, "helm", "helm", "`path` of the program helm")
	serve := flags.Bool("serve", false, "print the address of the registry, and serve it until an interrupt")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if *serve {
		of.serving = stdout
	}

	found, err := of.check(ctx)
	if err != nil {
		return err
	}

	_, err = fmt.Fprintln(stdout, found)
	return err
}

// check returns a line about the installation.
func (d *dist) check(ctx context.Context) (string, error) {
	host, end, err := serve(ctx)
	if err != nil {
		return "", err
	}

	defer end()

	pushed, err := d.pushImage(ctx, host)
	if err != nil {
		return "", fmt.Errorf("image: %w", err)
	}

	charts, err := filepath.Glob(filepath.Join(d.charts, "*.tgz"))
	if err != nil || len(charts) == 0 {
		return "", errors.Join(err, fmt.Errorf("no charts in %s", d.charts))
	}

	for _, chart := range charts {
		if _, err := d.run(ctx, "push", chart, "oci://"+host+"/charts", "--plain-http"); err != nil {
			return "", err
		}
	}

	platforms, err := d.install(ctx, host, pushed)
	if err != nil {
		return "", err
	}

	found := fmt.Sprintf("ok    registry: %d charts, and the image for %s", len(charts), strings.Join(platforms, ", "))
	if d.serving != nil {
		fmt.Fprintln(d.serving, host)
		<-ctx.Done()
		return found, nil
	}

	mirror, endMirror, err := serve(ctx)
	if err != nil {
		return "", err
	}
	defer endMirror()

	if err := d.mirror(ctx, host, mirror, pushed); err != nil {
		return "", fmt.Errorf("mirror: %w", err)
	}
	end() // Else the chart could still name it.
	if _, err := d.install(ctx, mirror, pushed, "--set", "image.digest="+pushed.String()); err != nil {
		return "", fmt.Errorf("mirror: %w", err)
	}
	return found + ", also from a mirror", nil
}

// serve runs an empty registry until end is called.
func serve(ctx context.Context) (host string, end func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{
		Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.Serve(listener) }()                          // It returns when the server is closed.
	return listener.Addr().String(), func() { _ = server.Close() }, nil // Its connections end with it.
}

// mirror copies the image with all platforms, as "crane copy" does, and the chart of the agent. The
// copy has the same digest.
func (d *dist) mirror(ctx context.Context, from, to string, pushed v1.Hash) error {
	source, err := name.ParseReference(from + "/agent:" + d.version)
	if err != nil {
		return err
	}
	target, err := name.ParseReference(to + "/agent:" + d.version)
	if err != nil {
		return err
	}
	index, err := remote.Index(source, remote.WithContext(ctx))
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(target, index, remote.WithContext(ctx)); err != nil {
		return err
	}
	copied, err := remote.Head(target, remote.WithContext(ctx))
	if err != nil {
		return err
	}
	if copied.Digest != pushed {
		return fmt.Errorf("the copy has the digest %s, want %s", copied.Digest, pushed)
	}

	folder, err := os.MkdirTemp("", "charts-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder) // It is in the folder for temporary files.
	const chart = "runtime-watcher-agent"
	version := strings.TrimPrefix(d.version, "v")
	_, err = d.run(ctx, "pull", "oci://"+from+"/charts/"+chart,
		"--version", version, "--plain-http", "--destination", folder)
	if err != nil {
		return err
	}
	_, err = d.run(ctx, "push", filepath.Join(folder, chart+"-"+version+".tgz"), "oci://"+to+"/charts", "--plain-http")
	return err
}

// pushImage returns the digest of the index.
func (d *dist) pushImage(ctx context.Context, host string) (v1.Hash, error) {
	index, err := layout.ImageIndexFromPath(d.layout)
	if err != nil {
		return v1.Hash{}, err
	}

	index, err = d.tagged(index)
	if err != nil {
		return v1.Hash{}, err
	}

	to, err := name.ParseReference(host + "/agent:" + d.version)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := remote.WriteIndex(to, index, remote.WithContext(ctx)); err != nil {
		return v1.Hash{}, err
	}

	return index.Digest()
}

// tagged returns the index of the version, as a copy of the layout by its tag takes it.
func (d *dist) tagged(index v1.ImageIndex) (v1.ImageIndex, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}

	for n := range manifest.Manifests {
		found := &manifest.Manifests[n]
		if found.Annotations["org.opencontainers.image.ref.name"] == d.version {
			return index.ImageIndex(found.Digest)
		}
	}

	return nil, fmt.Errorf("%s has no %s", d.layout, d.version)
}

var imageOf = regexp.MustCompile(`(?m)^\s*image: "?([^"\s]+)"?$`)

// install renders the chart of the agent from the registry, with more arguments of helm, and pulls
// the image that it names.
func (d *dist) install(
	ctx context.Context, host string, pushed v1.Hash, more ...string,
) (platforms []string, err error) {
	args := []string{
		"template", "agent", "oci://" + host + "/charts/runtime-watcher-agent", "--plain-http",
		"--version", strings.TrimPrefix(d.version, "v"),
		"--set", "image.repository=" + host + "/agent,controlPlane.address=kcp.example.com:443",
	}
	text, err := d.run(ctx, append(args, more...)...)
	if err != nil {
		return nil, err
	}

	found := imageOf.FindStringSubmatch(text)
	if found == nil {
		return nil, errors.New("the chart names no image")
	}

	from, err := name.ParseReference(found[1])
	if err != nil {
		return nil, err
	}

	index, err := remote.Index(from, remote.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", found[1], err)
	}
	if digest, err := index.Digest(); err != nil || digest != pushed {
		return nil, errors.Join(err, fmt.Errorf("%s has the digest %s, want %s", found[1], digest, pushed))
	}

	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}

	for n := range manifest.Manifests {
		platform := manifest.Manifests[n].Platform
		if platform == nil || platform.OS == "unknown" { // An SBOM.
			continue
		}
		if err := pull(ctx, from, *platform); err != nil {
			return nil, fmt.Errorf("pull %s for %s: %w", found[1], platform, err)
		}

		platforms = append(platforms, platform.String())
	}

	if len(platforms) == 0 {
		return nil, fmt.Errorf("%s is for no platform", found[1])
	}

	return platforms, nil
}

// pull reads all layers.
func pull(ctx context.Context, from name.Reference, platform v1.Platform) error {
	image, err := remote.Image(from, remote.WithContext(ctx), remote.WithPlatform(platform))
	if err != nil {
		return err
	}

	layers, err := image.Layers()
	if err != nil {
		return err
	}

	for _, layer := range layers {
		text, err := layer.Compressed()
		if err != nil {
			return err
		}

		_, err = io.Copy(io.Discard, text) // It is verified by its digest.
		if err := errors.Join(err, text.Close()); err != nil {
			return err
		}
	}

	return nil
}

func (d *dist) run(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, d.helm, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
