// Command image writes container images of one static Go binary for several platforms: an OCI
// layout with an index, and an SBOM for each image. It also writes archives for `docker load`.
//
// It needs neither an engine nor root. The same binaries and flags give the same digests on every
// machine.
package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// maxSize is the largest transfer of a pull, in bytes.
const maxSize = 10_000_000

func main() { os.Exit(command.Run("image", run)) }

// release contains the facts that all images of one release share.
type release struct {
	version, revision string
	licenses          string // an SPDX expression for all parts of the binary
	created           time.Time
	env               []string // NAME=value, the defaults of the container's environment
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var of release
	flags.StringVar(&of.version, "version", "dev", "version to note in the images")
	flags.StringVar(&of.revision, "revision", "", "commit to note in the images")
	env := flags.String("env-file", "", "`file` with variables of the images, one NAME=value per line (default none)")
	created := flags.Int64("created", 0, "time of the commit, in `seconds` since 1970")
	out := flags.String("out", "", "`directory` of the OCI layout, which is replaced")
	archives := flags.String("archives", "", "`directory` for an archive per platform, for docker load (default none)")
	licenses := flags.Bool("licenses", false,
		"print the licenses of the agent's parts, write their texts into -out, and make no image")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if *licenses {
		return printLicenses(ctx, stdout, *out)
	}
	if flags.NArg() == 0 || *out == "" {
		return errors.New("usage: image -out <directory> [flags] <os/architecture>=<binary>, once or more")
	}

	of.created = time.Unix(*created, 0).UTC()
	var err error
	if of.env, err = readEnv(*env); err != nil {
		return err
	}

	images, err := buildAll(ctx, flags.Args(), &of)
	if err != nil {
		return err
	}
	if err := errors.Join(writeLayout(*out, images, of), writeArchives(*archives, images, of)); err != nil {
		return err
	}

	return report(stdout, *out, images)
}

// builtImage is the image for one platform.
type builtImage struct {
	v1.Image

	platform v1.Platform
	binary   string
	info     *buildinfo.BuildInfo
	parts    []part
	size     int64 // of a pull, in bytes
}

func buildAll(ctx context.Context, args []string, of *release) (images []builtImage, err error) {
	for _, arg := range args {
		platform, binary, _ := strings.Cut(arg, "=")
		target, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, fmt.Errorf("platform %q: %w", platform, err)
		}

		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return nil, err
		}

		parts, err := partsOf(ctx, info)
		if err != nil {
			return nil, err
		}

		of.licenses = expression(parts)
		img, err := build(binary, *of, *target, parts)
		if err != nil {
			return nil, err
		}

		size, err := packedSize(img)
		if err != nil {
			return nil, err
		}
		if size > maxSize {
			return nil, fmt.Errorf("the image for %s has %.1f MB, and may have %.0f MB",
				target, float64(size)/1e6, maxSize/1e6)
		}

		images = append(images, builtImage{img, *target, binary, info, parts, size})
	}
	return images, nil
}

// report prints the digest of the index and of each image.
func report(stdout io.Writer, dir string, images []builtImage) error {
	index, err := readIndex(dir)
	if err != nil {
		return err
	}

	fmt.Fprintf(stdout, "%s  index  %s\n", dir, index)
	for _, img := range images {
		digest, err := img.Digest()
		if err != nil {
			return err
		}

		fmt.Fprintf(stdout, "%s  %s  %s  %.1f MB\n", dir, &img.platform, digest, float64(img.size)/1e6)
	}

	return nil
}
