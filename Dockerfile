# An alternative to `make image`, which needs no engine and gives the same digest twice.
# A test holds that both build the agent with the same flags.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=dev
WORKDIR /src
COPY . .
RUN cd cmd/agent && export GOOS=$TARGETOS GOARCH=$TARGETARCH && \
    GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /agent .

FROM scratch
LABEL org.opencontainers.image.source="https://github.com/runtime-watcher/runtime-watcher" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build --chmod=0555 /agent /agent
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/agent"]
