package remote

import (
	"net/http"
	"testing"
)

// A client of metadata asks for Protocol Buffers first, and must get JSON.
func TestOnlyJSONIsAccepted(t *testing.T) {
	const metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	for have, want := range map[string]string{
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + metadata + ",application/json": metadata +
			",application/json",
		"application/json": "application/json",
		"text/plain":       "text/plain",
		"":                 "",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://runtime.invalid", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", have)
		if got := acceptJSON(request).Header.Get("Accept"); got != want {
			t.Errorf("Accept %q becomes %q, want %q", have, got, want)
		}
	}
}
