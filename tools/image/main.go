// Command image writes a container image of one static binary as an OCI layout. It needs neither an
// engine nor root. The same binary, version and platform give the same digest on every machine.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// nonRoot is numeric, so that a kubelet can prove that it is not root.
	nonRoot = "65532:65532"
	source  = "https://github.com/runtime-watcher/runtime-watcher"
	// maxSize is the largest transfer of a pull, in bytes.
	maxSize = 20_000_000
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	platform := flags.String("platform", "linux/amd64", "`os/architecture` that the binary was built for")
	version := flags.String("version", "dev", "version to note in the image")
	out := flags.String("out", "", "`directory` of the OCI layout, which is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *out == "" {
		return errors.New("usage: image -out <directory> [-platform <os/architecture>] [-version <version>] <binary>")
	}
	target, err := v1.ParsePlatform(*platform)
	if err != nil {
		return fmt.Errorf("platform %q: %w", *platform, err)
	}
	img, err := build(flags.Arg(0), *version, *target)
	if err != nil {
		return err
	}
	size, err := packedSize(img)
	if err != nil {
		return err
	}
	if size > maxSize {
		return fmt.Errorf("the image has %.1f MB, and may have %.0f MB", float64(size)/1e6, maxSize/1e6)
	}
	if err := write(*out, img, *version, *target); err != nil {
		return fmt.Errorf("write OCI layout: %w", err)
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s  %s  %s  %.1f MB\n", *out, target, digest, float64(size)/1e6)
	return err
}

// build returns an image with one file, the binary, at its root. It runs as nonRoot.
func build(binary, version string, platform v1.Platform) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(binary)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return archive(name, content) },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:   layer,
		History: v1.History{CreatedBy: "make image", Comment: name + " " + version},
	})
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	file = file.DeepCopy()
	// No creation time, because it would change the digest.
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
	file.Config = v1.Config{
		Entrypoint: []string{"/" + name},
		User:       nonRoot,
		WorkingDir: "/",
		Labels: map[string]string{
			"org.opencontainers.image.title":    name,
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.source":   source,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, file)
}

// archive returns a tar archive with one read-only file that root owns. It has no times, so that it
// is equal on every machine.
func archive(name string, content []byte) (io.ReadCloser, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	header := &tar.Header{
		Typeflag: tar.TypeReg,
		Name:     name,
		Size:     int64(len(content)),
		Mode:     0o555,
		ModTime:  time.Unix(0, 0),
		Format:   tar.FormatUSTAR,
	}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return io.NopCloser(&buf), nil
}

func write(dir string, img v1.Image, version string, platform v1.Platform) error {
	// Otherwise blobs of an earlier image stay in the layout.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendImage(img,
		layout.WithPlatform(platform),
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version}))
}

// packedSize returns the bytes that a pull transfers: the configuration and the compressed layers.
func packedSize(img v1.Image) (int64, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	size := manifest.Config.Size
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	return size, nil
}
