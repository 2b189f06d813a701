package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// nonRoot is numeric, so that a kubelet can verify that the user is not root.
	nonRoot = "65532:65532"
	source  = "https://github.com/runtime-watcher/runtime-watcher"
)

// build returns an image with the binary at its root, and the license texts below licenses. It runs
// as nonRoot.
func build(binary string, of release, platform v1.Platform, parts []part) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}

	name := filepath.Base(binary)
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, content := range []map[string][]byte{notices(parts), {name: content}} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return archive(content) },
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, fmt.Errorf("layer: %w", err)
		}

		img, err = mutate.Append(img, mutate.Addendum{
			Layer: layer,
			History: v1.History{
				Created: v1.Time{Time: of.created}, CreatedBy: "make image", Comment: name + " " + of.version,
			},
		})
		if err != nil {
			return nil, fmt.Errorf("append layer: %w", err)
		}
	}

	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}

	file = file.DeepCopy()
	file.Created = v1.Time{Time: of.created}
	file.OS = platform.OS
	file.Architecture = platform.Architecture
	file.Variant = platform.Variant
	file.Config = v1.Config{
		Entrypoint: []string{"/" + name},
		User:       nonRoot,
		WorkingDir: "/",
		Labels:     of.labels(name),
		Env:        of.env,
	}

	return mutate.ConfigFile(img, file)
}

// labels are the annotations of the OCI image specification, for an image and its index.
func (r release) labels(title string) map[string]string {
	const prefix = "org.opencontainers.image."
	labels := map[string]string{
		prefix + "title":    title,
		prefix + "version":  r.version,
		prefix + "source":   source,
		prefix + "licenses": r.licenses,
		prefix + "created":  r.created.Format(time.RFC3339),
	}

	if r.revision != "" {
		labels[prefix+"revision"] = r.revision
	}
	return labels
}

// archive returns a tar archive of read-only files that root owns, sorted. It has no times, so that
// equal files of two commits share a layer. A file at the root is a program.
func archive(content map[string][]byte) (io.ReadCloser, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)

	for _, name := range slices.Sorted(maps.Keys(content)) {
		mode := int64(0o444)
		if !strings.Contains(name, "/") {
			mode = 0o555
		}

		err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: name, Size: int64(len(content[name])), Mode: mode,
			ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(content[name]); err != nil {
			return nil, err
		}
	}

	return io.NopCloser(&buf), w.Close()
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
