package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Review returns the AdmissionReview of the creation of a ConfigMap.
func Review(name string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"uid-1",`+
		`"kind":{"group":"","version":"v1","kind":"ConfigMap"},"resource":{"group":"","version":"v1",`+
		`"resource":"configmaps"},`+
		`"name":%[1]q,"namespace":"default","operation":"CREATE","userInfo":{},"dryRun":false,"oldObject":null,`+
		`"object":{`+
		`"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%[1]q,"namespace":"default"}}}}`, name)
}

// Post posts JSON. The caller closes the body of the answer.
func Post(ctx context.Context, client *http.Client, url, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return client.Do(request)
}

// Ask posts a review to a webhook as an API server does, and fails unless the webhook allows the write.
func Ask(ctx context.Context, client *http.Client, url, review string) error {
	answer, err := Post(ctx, client, url, review)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var reply struct {
		Response struct {
			UID     string `json:"uid"`
			Allowed bool   `json:"allowed"`
		} `json:"response"`
	}
	err = json.NewDecoder(answer.Body).Decode(&reply)
	if err != nil || answer.StatusCode != http.StatusOK || reply.Response.UID != "uid-1" || !reply.Response.Allowed {
		return fmt.Errorf("answer %s, %+v (%w), want it allowed", answer.Status, reply.Response, err)
	}
	return nil
}
