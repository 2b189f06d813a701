package contract_test

import (
	"errors"
	"fmt"
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

func TestTraits(t *testing.T) {
	t.Parallel()
	for version, want := range map[contract.Version]string{
		contract.V1: "/v1/kyma/event application/json 200 1 16384, owner true, numbers false",
		contract.V2: "/v2/kyma/event application/json 200 1 16384, owner false, numbers false",
		contract.V3: "/v3/kyma/events application/cloudevents-batch+json 202 500 262144, owner false, numbers true",
	} {
		got := fmt.Sprint(version.Path("kyma"), " ", version.ContentType(), " ",
			version.Status(), version.MaxEvents(), version.MaxBody(), ", owner ", version.NeedsOwner(), ", numbers ", version.Numbered())
		if got != want {
			t.Errorf("%s has the traits %s, want %s", version, got, want)
		}
		if path := version.Path("a/b%2F?#"); strings.Count(path, "/") != 3 || strings.ContainsAny(path, "?#") {
			t.Errorf("%s: Path = %s is not escaped", version, path)
		}
		request, err := version.Encode(&core.Batch{Source: "r", Heartbeat: &core.Heartbeat{ID: "h"}})
		if err != nil || (request.Body != nil) != version.Numbered() || len(request.Failed) > 0 {
			t.Errorf("%s: Encode of a heartbeat = %+v, %v, want no failure, and a body with numbers only", version, request, err)
		}
		if _, err := version.Encode(&core.Batch{Source: "r"}); !errors.Is(err, contract.ErrMalformed) {
			t.Errorf("%s: Encode of an empty batch = %v, want ErrMalformed", version, err)
		}
	}
	if !slices.IsSorted(contract.Versions()) {
		t.Errorf("Versions = %v, want the oldest first", contract.Versions())
	}
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}
