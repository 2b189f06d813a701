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
	if info, ok := debug.ReadBuildInfo(); ok {
		b.version = cmp.Or(b.version, versionOf(info))
	}
	b.version = cmp.Or(b.version, "dev")
	if fips140.Enabled() {
		b.fips = fips140.Version()
	}
	return b
}

// versionOf returns the version of the module, or else its commit. It is empty for neither.
func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return ""
}

func (b build) String() string {
	return fmt.Sprintf("agent %s %s %s fips140=%s", b.version, b.goVersion, b.platform, b.fips)
}

func (b build) LogValue() slog.Value {
	return slog.GroupValue(slog.String("version", b.version), slog.String("go", b.goVersion),
		slog.String("platform", b.platform), slog.String("fips140", b.fips))
}
