package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// nonRoot is numeric, so that a kubelet can prove that it is not root.
	nonRoot = "65532:65532"
	source  = "https://github.com/runtime-watcher/runtime-watcher"
)

// build returns an image with one file, the binary, at its root. It runs as nonRoot.
func build(binary string, of release, platform v1.Platform) (v1.Image, error) {
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
		Layer: layer,
		History: v1.History{
			Created: v1.Time{Time: of.created}, CreatedBy: "make image", Comment: name + " " + of.version,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	file = file.DeepCopy()
	file.Created = v1.Time{Time: of.created}
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
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
		prefix + "licenses": "Apache-2.0",
		prefix + "created":  r.created.Format(time.RFC3339),
	}
	if r.revision != "" {
		labels[prefix+"revision"] = r.revision
	}
	return labels
}

// archive returns a tar archive with one read-only file that root owns. It has no times, so that
// equal binaries of two commits share a layer.
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
