package contract_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for _, want := range contract.Versions() {
		got, err := contract.ParseVersion(string(want))
		if err != nil || got != want {
			t.Errorf("ParseVersion(%s) = %q, %v", want, got, err)
		}
	}
	for _, name := range []string{"", "v0", "V1", " v1", "v1/", strings.Repeat("v", 300)} {
		_, err := contract.ParseVersion(name)
		switch {
		case !errors.Is(err, contract.ErrUnknownVersion):
			t.Errorf("ParseVersion(%.20q) = %v, want ErrUnknownVersion", name, err)
		case !strings.Contains(err.Error(), "v1 v2") || len(err.Error()) > 100:
			t.Errorf("ParseVersion(%.20q) = %v: want a short text that names the contracts", name, err)
		}
	}
}

func TestUnknownVersionsNeitherEncodeNorDecode(t *testing.T) {
	t.Parallel()
	const none contract.Version = "v0"
	if _, err := none.Encode(&core.Batch{}); !errors.Is(err, contract.ErrUnknownVersion) || !core.IsPermanent(err) {
		t.Errorf("Encode = %v, want ErrUnknownVersion", err)
	}
	if _, err := none.Decode([]byte(`{}`)); !errors.Is(err, contract.ErrUnknownVersion) || !core.IsPermanent(err) {
		t.Errorf("Decode = %v, want ErrUnknownVersion", err)
	}
}

func TestSingleContracts(t *testing.T) {
	t.Parallel()
	paths := map[contract.Version]string{contract.V1: "/v1/kyma/event", contract.V2: "/v2/kyma/event"}
	for version, path := range paths {
		if got := version.Path("kyma"); got != path {
			t.Errorf("%s: Path = %s, want %s", version, got, path)
		}
		if got := version.Path("a/b%2F?#"); strings.Count(got, "/") != 3 || strings.ContainsAny(got, "?#") {
			t.Errorf("%s: Path = %s is not escaped", version, got)
		}
		if got := version.ContentType(); got != "application/json" {
			t.Errorf("%s: ContentType = %s", version, got)
		}
		if version.MaxEvents() != 1 || version.MaxBody() != 16<<10 || version.NeedsOwner() != (version == contract.V1) {
			t.Errorf("%s: MaxEvents = %d, MaxBody = %d, NeedsOwner = %v",
				version, version.MaxEvents(), version.MaxBody(), version.NeedsOwner())
		}
		if version.Numbered() || version.Status() != 200 {
			t.Errorf("%s: Numbered = %v, Status = %d", version, version.Numbered(), version.Status())
		}
	}
	for _, version := range contract.Versions() {
		if _, err := version.Encode(&core.Batch{Source: "r"}); !errors.Is(err, contract.ErrMalformed) {
			t.Errorf("%s: Encode of an empty batch = %v, want ErrMalformed", version, err)
		}
	}
	if !slices.IsSorted(contract.Versions()) {
		t.Errorf("Versions = %v, want the oldest first", contract.Versions())
	}
}
