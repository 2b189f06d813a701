package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// spdx is the media type of an SBOM (SPDX 2.3 in JSON).
const spdx = types.MediaType("application/spdx+json")

// writeLayout writes an index of the images and one SBOM for each image. An SBOM has the image as
// its subject (OCI image specification 1.1, image manifest).
func writeLayout(dir string, images []builtImage, of release) error {
	// Otherwise, blobs of an earlier image would stay in the layout.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}

	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img.Image, Descriptor: v1.Descriptor{Platform: &img.platform},
		})
	}

	annotated, _ := mutate.Annotations(index, of.labels(filepath.Base(images[0].binary))).(v1.ImageIndex)
	ref := map[string]string{"org.opencontainers.image.ref.name": of.version}
	if err := path.AppendIndex(annotated, layout.WithAnnotations(ref)); err != nil {
		return fmt.Errorf("write OCI layout: %w", err)
	}

	for _, img := range images {
		if err := appendSBOM(path, img, of); err != nil {
			return fmt.Errorf("SBOM for %s: %w", &img.platform, err)
		}
	}

	return nil
}

func appendSBOM(path layout.Path, img builtImage, of release) error {
	digest, err := img.Digest()
	if err != nil {
		return err
	}

	text, err := sbom(img.info, img.binary, digest.String(), of, img.parts)
	if err != nil {
		return err
	}

	// The media type of the configuration is the media type of the SBOM.
	attachment := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), spdx)
	attachment, err = mutate.AppendLayers(attachment, static.NewLayer(text, spdx))
	if err != nil {
		return err
	}

	subject, err := partial.Descriptor(img.Image)
	if err != nil {
		return err
	}

	attached, _ := mutate.Subject(attachment, *subject).(v1.Image)
	return path.AppendImage(attached)
}

// readIndex returns the digest of the index in a layout.
func readIndex(dir string) (v1.Hash, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return v1.Hash{}, err
	}

	manifest, err := index.IndexManifest()
	if err != nil {
		return v1.Hash{}, err
	}

	return manifest.Manifests[0].Digest, nil
}

// writeArchives writes an archive for `docker load` for each image, if there is a directory.
func writeArchives(dir string, images []builtImage, of release) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	for _, img := range images {
		title := filepath.Base(img.binary)
		tag, err := name.NewTag("runtime-watcher/"+title+":"+of.version, name.WeakValidation)
		if err != nil {
			return err
		}

		file := title + "-" + strings.ReplaceAll(img.platform.String(), "/", "-") + ".tar"
		if err := tarball.WriteToFile(filepath.Join(dir, file), tag, img.Image); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
	}

	return nil
}
