// Package admission is a change source for the webhook of a runtime. The API server sends each
// write as an AdmissionReview (admission.k8s.io/v1) before it commits the write.
//
// The handler of [New] answers every review with allowed, and never waits for the control plane. A
// [core.Filter] decides whether the change matters. An event for it goes to a [core.Acceptor],
// which must not block.
//
// [WebhookConfiguration] builds the object that makes an API server call the handler.
package admission
