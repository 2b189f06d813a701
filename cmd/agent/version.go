package main

import (
	"cmp"
	"crypto/fips140"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

type build struct{ version, goVersion, platform, fips string }

func thisBuild() build {
	b := build{
		version:   version,
		goVersion: runtime.Version(),
		platform:  runtime.GOOS + "/" + runtime.GOARCH,
		fips:      "off",
	}

	// The version is "(devel)" without a commit.
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "(devel)" {
		b.version = cmp.Or(b.version, info.Main.Version)
	}

	b.version = cmp.Or(b.version, "dev")
	if fips140.Enabled() {
		b.fips = fips140.Version()
	}
	return b
}

func (b build) String() string {
	return fmt.Sprintf("agent %s %s %s fips140=%s", b.version, b.goVersion, b.platform, b.fips)
}

func (b build) LogValue() slog.Value {
	return slog.GroupValue(slog.String("version", b.version), slog.String("go", b.goVersion),
		slog.String("platform", b.platform), slog.String("fips140", b.fips))
}
